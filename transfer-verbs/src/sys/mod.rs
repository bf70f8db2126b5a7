//! The two libraries' functions, looked up at run time, so that a program starts even if the libraries are missing.
//!
//! Types, constants and the inline functions of the headers come from `rdma-sys`. Its extern functions are never
//! called, or the linker would make the program need the libraries. The functions that are looked up are compared with
//! their declarations when this is compiled.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

mod rdmacm;
mod verbs;

pub(crate) use rdmacm::{Rdmacm, rdmacm};
pub(crate) use verbs::{Verbs, verbs};

/// The reason why a library cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{library} cannot be used: {why}")]
pub struct Unavailable {
    /// The library's file name.
    pub library: &'static str,
    /// The loader's error.
    pub why: String,
}

/// Returns an error with the reason if there is no libibverbs. The library is opened once. Whether there are devices
/// is another question.
pub fn available() -> Result<(), Unavailable> {
    verbs().map(|_| ())
}

/// An opened library. It stays open, because its objects may live anywhere.
pub(crate) struct Library {
    name: &'static str,
    handle: NonNull<libc::c_void>,
}

impl Library {
    pub(crate) fn open(name: &'static CStr) -> Result<Self, Unavailable> {
        let library = name.to_str().unwrap_or("a library");
        // SAFETY: the name ends with a zero byte. The libraries' initialisers only set up their own tables.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { name: library, handle }),
            None => Err(Unavailable { library, why: loader_error() }),
        }
    }

    /// Returns the address of a function, in its default version if there are several.
    pub(crate) fn symbol(&self, name: &CStr) -> Result<NonNull<libc::c_void>, Unavailable> {
        // SAFETY: the handle is open and stays so, the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or_else(|| Unavailable { library: self.name, why: loader_error() })
    }
}

fn loader_error() -> String {
    // SAFETY: the returned text is valid until this thread's next call of the loader, and is copied.
    unsafe {
        let words = libc::dlerror();
        if words.is_null() {
            return "the loader does not say why".to_owned();
        }
        CStr::from_ptr(words).to_string_lossy().into_owned()
    }
}

/// Declares a table of a library's functions, and a function that fills it. A function after `undeclared` is not in
/// rdma-sys, so its signature is not compared.
macro_rules! library {
    (
        $(#[$doc:meta])* $table:ident {
            $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
            $(undeclared fn $own:ident($($own_argument:ident: $own_type:ty),* $(,)?) -> $own_result:ty;)*
        }
    ) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
            $(pub(crate) $own: unsafe extern "C" fn($($own_argument: $own_type),*) -> $own_result,)*
        }

        // The declarations are only compared, not linked: nothing of this is in the program.
        $(const _: unsafe extern "C" fn($($type),*) $(-> $result)? = rdma_sys::$name;)*

        impl $table {
            pub(crate) fn load(name: &'static std::ffi::CStr) -> Result<Self, $crate::Unavailable> {
                let library = $crate::sys::Library::open(name)?;
                let symbol = |name: &str| {
                    library.symbol(&std::ffi::CString::new(name).unwrap_or_default())
                };
                // SAFETY: each address is that of the function of this name, whose signature is the declared one.
                unsafe {
                    Ok(Self {
                        $($name: std::mem::transmute::<
                            std::ptr::NonNull<libc::c_void>,
                            unsafe extern "C" fn($($type),*) $(-> $result)?,
                        >(symbol(stringify!($name))?),)*
                        $($own: std::mem::transmute::<
                            std::ptr::NonNull<libc::c_void>,
                            unsafe extern "C" fn($($own_type),*) -> $own_result,
                        >(symbol(stringify!($own))?),)*
                    })
                }
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}
pub(crate) use library;

/// A pointer to an object of a library.
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: both libraries let any thread use any of their objects at any time (ibv_post_send(3), rdma_cm(7): they lock
// by themselves). Where a field of an object is read or written here, the code that does it says what orders that.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Makes a handle. For a null pointer, returns the system's error in `errno`.
    pub(crate) fn new(pointer: *mut T) -> io::Result<Self> {
        NonNull::new(pointer).map(Self).ok_or_else(io::Error::last_os_error)
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Lets reads of a library's file descriptor return instead of waiting.
pub(crate) fn set_nonblocking(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

/// Returns the text in a field of fixed length.
pub(crate) fn text(field: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&c| c.cast_unsigned()).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Library, Verbs, text};

    #[test]
    fn a_missing_library_is_named_with_the_loaders_words() {
        let missing = Verbs::load(c"libnowhere.so.7").expect_err("it is not there");
        assert_eq!(missing.library, "libnowhere.so.7");
        assert!(missing.to_string().contains("No such file"), "{missing}");
    }

    #[test]
    fn a_library_without_the_functions_is_named_with_the_function() {
        let other = Verbs::load(c"libc.so.6").expect_err("another library");
        assert!(other.to_string().starts_with("libc.so.6 cannot be used: ") && other.why.contains("ibv_"), "{other}");
    }

    #[test]
    fn a_symbol_of_an_open_library_is_found() {
        let library = Library::open(c"libc.so.6").expect("every process has it");
        assert!(library.symbol(c"getpid").is_ok());
    }

    #[test]
    fn a_text_ends_at_its_first_zero_or_at_the_fields_end() {
        assert_eq!(text(&[65, 66, 0, 67]), "AB");
        assert_eq!(text(&[65, 66]), "AB");
    }
}
