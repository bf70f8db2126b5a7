//! The format's names of element types.

use transfer_client::DType;

/// The format's name of a type.
pub(super) fn name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "BOOL",
        DType::I8 => "I8",
        DType::U8 => "U8",
        DType::I16 => "I16",
        DType::U16 => "U16",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::I64 => "I64",
        DType::U64 => "U64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::C64 => "C64",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::F8E8M0 => "F8_E8M0",
        DType::F4E2M1 => "F4",
        // C128, I4 and U4.
        _ => return None,
    })
}

/// The type of that name; `None` for types without a counterpart here: F6_E2M3, F6_E3M2 and the FNUZ types.
pub(super) fn of(text: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| name(*dtype) == Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name_and_its_size() {
        for dtype in DType::ALL {
            let Some(name) = name(dtype) else {
                assert!([DType::C128, DType::I4, DType::U4].contains(&dtype), "{dtype}");
                continue;
            };
            assert_eq!(of(name), Some(dtype));
            let theirs: safetensors::Dtype = serde_json::from_value(name.into()).unwrap();
            assert_eq!(theirs.bitsize() as u64 * dtype.elements_per_unit(), dtype.size_bytes() * 8, "{name}");
        }
        for other in ["F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "f32", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
