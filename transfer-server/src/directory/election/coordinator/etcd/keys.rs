//! The names of the keys of a directory.

/// The keys of one directory.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) prefix: String,
}

impl Keys {
    pub(super) fn leader(&self) -> Vec<u8> {
        format!("{}/leader", self.prefix).into_bytes()
    }

    pub(super) fn newest(&self) -> Vec<u8> {
        format!("{}/newest", self.prefix).into_bytes()
    }

    pub(super) fn host(&self, node: &str) -> Vec<u8> {
        format!("{}/hosts/{node}", self.prefix).into_bytes()
    }

    pub(super) fn node(&self, node: &str) -> Vec<u8> {
        format!("{}/nodes/{node}", self.prefix).into_bytes()
    }

    /// The key behind all that begin like this one, which ends with a slash.
    pub(super) fn end_of(mut folder: Vec<u8>) -> Vec<u8> {
        if let Some(last) = folder.last_mut() {
            *last += 1;
        }
        folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_folder_is_behind_all_its_keys() {
        assert_eq!(Keys::end_of(b"/t/nodes/".to_vec()), b"/t/nodes0");
    }
}
