//! Names and metadata of Arrow's schemas: bytes in the C interface, text in Arrow's crate and in the IPC format.

#![expect(unsafe_code, reason = "the C struct of a schema")]

use arrow_array::ffi::FFI_ArrowSchema;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::marker::PhantomData;

/// The first fields of a schema, whose bytes Arrow's crate keeps to itself. Source:
/// <https://arrow.apache.org/docs/format/CDataInterface.html#the-arrowschema-structure>.
#[repr(C)]
struct Head {
    _format: *const c_char,
    name: *const c_char,
    metadata: *const u8,
}

/// A name or metadata of a schema that is not UTF-8.
#[derive(Debug)]
pub(crate) enum NotText {
    /// The value under this key, at the schema or a field.
    Value { at: String, key: String, value: Vec<u8> },
    /// A key, at the schema or a field.
    Key { at: String, key: Vec<u8> },
    /// The name of a field in the schema or another field.
    Name { at: String, name: Vec<u8> },
}

impl fmt::Display for NotText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// As many bytes as tell a pickle from an image.
        const SHOWN: usize = 16;
        let begins = |bytes: &[u8]| format!("it begins with b\"{}\"", bytes[..bytes.len().min(SHOWN)].escape_ascii());
        const ADVICE: &str = "Metadata is text: encode it, for example in base64";
        match self {
            NotText::Value { at, key, value } => {
                write!(f, "{at} has metadata under the key {key:?} that is not UTF-8: {}. {ADVICE}", begins(value))
            }
            NotText::Key { at, key } => {
                write!(f, "{at} has metadata under a key that is not UTF-8: {}. {ADVICE}", begins(key))
            }
            NotText::Name { at, name } => {
                write!(f, "{at} has a field whose name is not UTF-8: {}. Rename it", begins(name))
            }
        }
    }
}

/// Checks that all names and metadata of a schema are text.
pub(crate) fn check(schema: &FFI_ArrowSchema) -> Result<(), NotText> {
    check_metadata(schema, "the schema")?;
    check_fields(schema, "the schema", "")
}

/// Checks the fields within the schema, or within the field of this path.
fn check_fields(of: &FFI_ArrowSchema, at: &str, path: &str) -> Result<(), NotText> {
    for field in of.children() {
        let name = match head(field).name {
            name if name.is_null() => "",
            // SAFETY: a name ends with a null byte, and lives as long as its schema.
            name => match unsafe { CStr::from_ptr(name) } {
                name if name.to_str().is_err() => {
                    return Err(NotText::Name { at: at.to_owned(), name: name.to_bytes().to_vec() });
                }
                name => name.to_str().unwrap_or_default(),
            },
        };
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let at = format!("field {path:?}");
        check_metadata(field, &at)?;
        check_fields(field, &at, &path)?;
    }
    // The values of a dictionary have no name of their own.
    of.dictionary().map_or(Ok(()), |values| check_fields(values, at, path))
}

fn check_metadata(of: &FFI_ArrowSchema, at: &str) -> Result<(), NotText> {
    let mut rest = Rest::of(of);
    let entries = if rest.at.is_null() { 0 } else { rest.length().unwrap_or(0) };
    for _ in 0..entries {
        // Arrow's crate reports a length that cannot be.
        let Some((key, value)) = rest.text().zip(rest.text()) else { return Ok(()) };
        let Ok(key) = std::str::from_utf8(key) else {
            return Err(NotText::Key { at: at.to_owned(), key: key.to_vec() });
        };
        if std::str::from_utf8(value).is_err() {
            return Err(NotText::Value { at: at.to_owned(), key: key.to_owned(), value: value.to_vec() });
        }
    }
    Ok(())
}

fn head(schema: &FFI_ArrowSchema) -> &Head {
    // SAFETY: the struct has the layout of the C interface, which begins with these fields.
    unsafe { &*std::ptr::from_ref(schema).cast::<Head>() }
}

/// The bytes of the metadata that follow.
struct Rest<'a> {
    at: *const u8,
    /// The schema keeps them.
    schema: PhantomData<&'a FFI_ArrowSchema>,
}

impl<'a> Rest<'a> {
    /// All of them; the pointer is null if there are none.
    fn of(schema: &'a FFI_ArrowSchema) -> Rest<'a> {
        Rest { at: head(schema).metadata, schema: PhantomData }
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        // SAFETY: the producer has written so many bytes there, and they live as long as the schema.
        let bytes = unsafe { std::slice::from_raw_parts(self.at, len) };
        self.at = bytes.as_ptr_range().end;
        bytes
    }

    /// The next number of entries or bytes. `None` if it is negative.
    fn length(&mut self) -> Option<usize> {
        let bytes = self.bytes(size_of::<i32>()).try_into().ok()?;
        usize::try_from(i32::from_ne_bytes(bytes)).ok()
    }

    /// The next key or value.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.length()?;
        Some(self.bytes(len))
    }
}
