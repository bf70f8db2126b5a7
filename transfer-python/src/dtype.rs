//! Names of element types: numpy's, with those of ml_dtypes.

use crate::{errors, strided};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use transfer_client::DType;

/// Each element type: numpy's name, DLPack's code (dlpack.h, `DLDataTypeCode`), and the format of the struct module if
/// there is one.
const TYPES: [(DType, &str, u8, Option<&std::ffi::CStr>); 21] = [
    (DType::Bool, "bool", 6, Some(c"?")),
    (DType::I8, "int8", 0, Some(c"b")),
    (DType::U8, "uint8", 1, Some(c"B")),
    (DType::I16, "int16", 0, Some(c"h")),
    (DType::U16, "uint16", 1, Some(c"H")),
    (DType::I32, "int32", 0, Some(c"i")),
    (DType::U32, "uint32", 1, Some(c"I")),
    (DType::I64, "int64", 0, Some(c"q")),
    (DType::U64, "uint64", 1, Some(c"Q")),
    (DType::F16, "float16", 2, Some(c"e")),
    (DType::BF16, "bfloat16", 4, None),
    (DType::F32, "float32", 2, Some(c"f")),
    (DType::F64, "float64", 2, Some(c"d")),
    (DType::C64, "complex64", 5, Some(c"Zf")),
    (DType::F8E4M3, "float8_e4m3fn", 10, None),
    (DType::F8E5M2, "float8_e5m2", 12, None),
    (DType::C128, "complex128", 5, Some(c"Zd")),
    (DType::F8E8M0, "float8_e8m0fnu", 14, None),
    (DType::F4E2M1, "float4_e2m1fn", 17, None),
    (DType::I4, "int4", 0, None),
    (DType::U4, "uint4", 1, None),
];

fn row(dtype: DType) -> &'static (DType, &'static str, u8, Option<&'static std::ffi::CStr>) {
    // An unknown type of a later version is shown as bytes.
    TYPES.iter().find(|(d, ..)| *d == dtype).unwrap_or(&TYPES[2])
}

/// numpy's name.
pub(crate) fn name(dtype: DType) -> &'static str {
    row(dtype).1
}

/// The format of the struct module, if there is one.
pub(crate) fn format(dtype: DType) -> Option<&'static std::ffi::CStr> {
    row(dtype).3
}

/// The codes of DLPack: the kind, the number of bits, and the number of lanes, which for types that share a byte are those
/// of torch's pairs. `None` for integers of 4 bits, of which no library takes pairs.
pub(crate) fn to_dlpack(dtype: DType) -> Option<(u8, u8, u16)> {
    let lanes = dtype.elements_per_unit();
    let code = Some(row(dtype).2).filter(|_| !matches!(dtype, DType::I4 | DType::U4))?;
    Some((code, (dtype.size_bytes() * 8 / lanes) as u8, lanes as u16))
}

/// The element type with these codes of DLPack.
pub(crate) fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<DType> {
    TYPES.iter().map(|row| row.0).find(|dtype| to_dlpack(*dtype) == Some((code, bits, lanes)))
}

/// The element type of a name: numpy's, torch's, or this project's own.
pub(crate) fn from_name(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    match name {
        "half" => return Some(DType::F16),
        "float" => return Some(DType::F64),
        "int" => return Some(DType::I64),
        "complex" => return Some(DType::C128),
        _ => {}
    }
    TYPES.iter().find(|(_, numpy, ..)| *numpy == name).map(|row| row.0).or_else(|| DType::from_name(name))
}

/// The element type of a format of the struct module, in memory order, with elements of `item_bytes`.
pub(crate) fn from_format(format: &str, item_bytes: usize) -> Option<DType> {
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let code = format.trim_start_matches(['@', '=', native]);
    let by_size = |of: [DType; 4]| of.into_iter().find(|dtype| dtype.size_bytes() as usize == item_bytes);
    let found = match code {
        "?" => DType::Bool,
        "c" => DType::U8,
        "b" | "h" | "i" | "l" | "q" | "n" => by_size([DType::I8, DType::I16, DType::I32, DType::I64])?,
        "B" | "H" | "I" | "L" | "Q" | "N" => by_size([DType::U8, DType::U16, DType::U32, DType::U64])?,
        "e" => DType::F16,
        "f" => DType::F32,
        "d" => DType::F64,
        "Zf" => DType::C64,
        "Zd" => DType::C128,
        _ => return None,
    };
    (found.size_bytes() as usize == item_bytes).then_some(found)
}

/// The element type that a caller's `dtype` stands for: a name, a type of numpy, ml_dtypes or torch, or one of those
/// libraries' scalar classes.
pub(crate) fn of(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    let text = if let Ok(text) = dtype.cast::<PyString>() {
        text.to_string()
    } else if let Ok(class) = dtype.cast::<PyType>() {
        class.name()?.to_string()
    } else if let Ok(name) = dtype.getattr("name").and_then(|name| name.extract::<String>()) {
        // numpy reports the byte order in another attribute.
        let order = dtype.getattr("byteorder").and_then(|order| order.extract::<String>()).unwrap_or_default();
        format!("{}{name}", order.trim_matches(['=', '|', '<']))
    } else {
        dtype.str()?.to_string()
    };
    from_name(&text).ok_or_else(|| {
        let pairs = match text.trim_start_matches("torch.") {
            "float4_e2m1fn_x2" => {
                ": a shape counts elements here, and not pairs, so say float4_e2m1fn, and the last dimension twice"
            }
            _ => "",
        };
        let known = names().join(", ");
        errors::invalid(dtype.py(), &format!("{text} is no element type of a tensor; there are {known}{pairs}"))
    })
}

/// The names of all element types.
pub(crate) fn names() -> Vec<&'static str> {
    TYPES.iter().map(|row| row.1).collect()
}

/// The name of an element type to which floats are cast.
#[pyfunction]
#[pyo3(name = "_cast_type")]
pub(crate) fn cast_type(dtype: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    let found = of(dtype)?;
    match strided::FLOATS.contains(&found) {
        true => Ok(name(found)),
        false => {
            let known = strided::FLOATS.map(name).join(", ");
            Err(errors::invalid(dtype.py(), &format!("dtype= casts floats to {known}, and not to {}", name(found))))
        }
    }
}

/// The names of the element types of which two share a byte.
pub(crate) fn packed_names() -> Vec<&'static str> {
    TYPES.iter().filter(|row| row.0.elements_per_unit() > 1).map(|row| row.1).collect()
}

/// Makes the error for an array with elements of another type.
pub(crate) fn unsupported(py: Python<'_>, found: &str) -> PyErr {
    errors::invalid(
        py,
        &format!("unsupported element type: {found}; there are {}: convert it first", names().join(", ")),
    )
}
