use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use librope_sys as sys;

use crate::messages::of_function;

/// What a function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused. Every variant holds a message that names the function, the field, its value
/// and the rule that it breaks, such as `Context::apply: k.heads (0) must be positive`.
///
/// ```
/// use librope::{Config, Error, Pairing};
///
/// let error = Config::new(127, 10000.0, Pairing::Halves).build().unwrap_err();
/// assert!(matches!(error, Error::InvalidArgument(_)));
/// assert!(error.message().contains("head_dim (127)"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A value breaks the rule that its documentation states.
    InvalidArgument(String),
    /// Not offered by this version of the library.
    Unsupported(String),
    /// There was no memory.
    OutOfMemory(String),
    /// No such device, or a library built without it.
    Unavailable(String),
    /// `config.json` was not understood; the message names the key.
    Parse(String),
    /// The runner failed: the outputs are unspecified. (A [`ParallelFor`](crate::ParallelFor) that
    /// panics is no error: the panic goes on in the caller.)
    Runner(String),
    /// The driver of the device refused: the outputs are unspecified.
    Device(String),
    /// A mistake in librope.
    Internal(String),
    /// A status that is newer than this crate.
    Other {
        /// The number in `librope/rope.h`.
        status: i32,
        /// The library's message.
        message: String,
    },
}

impl Error {
    /// The number in `librope/rope.h`, always negative.
    #[must_use]
    pub fn status(&self) -> i32 {
        match self {
            Error::InvalidArgument(_) => sys::ROPE_ERROR_INVALID_ARGUMENT,
            Error::Unsupported(_) => sys::ROPE_ERROR_UNSUPPORTED,
            Error::OutOfMemory(_) => sys::ROPE_ERROR_OUT_OF_MEMORY,
            Error::Unavailable(_) => sys::ROPE_ERROR_UNAVAILABLE,
            Error::Parse(_) => sys::ROPE_ERROR_PARSE,
            Error::Runner(_) => sys::ROPE_ERROR_RUNNER,
            Error::Device(_) => sys::ROPE_ERROR_DEVICE,
            Error::Internal(_) => sys::ROPE_ERROR_INTERNAL,
            Error::Other { status, .. } => *status,
        }
    }

    /// What was refused, and why.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Error::InvalidArgument(message)
            | Error::Unsupported(message)
            | Error::OutOfMemory(message)
            | Error::Unavailable(message)
            | Error::Parse(message)
            | Error::Runner(message)
            | Error::Device(message)
            | Error::Internal(message)
            | Error::Other { message, .. } => message,
        }
    }

    /// The same of a public function: messages begin with its name.
    #[cold]
    #[inline(never)]
    fn of_function(self, function: &str) -> Error {
        self.with(|message| of_function(function, message))
    }

    /// The same of the cache that a move reads, which was checked as any other.
    #[cold]
    #[inline(never)]
    pub(crate) fn of_source(self) -> Error {
        self.with(|message| {
            if message.contains("the cache's") {
                message.replace("the cache's", "the source's")
            } else {
                format!("librope: of the source: {}", rule(message))
            }
        })
    }

    /// The same of positions before a move, which were checked as any others.
    #[cold]
    #[inline(never)]
    pub(crate) fn of_positions_before(self, have_sets: bool) -> Error {
        self.with(|message| match rule(message).strip_prefix("freq_sets") {
            Some(rest) if have_sets => format!("librope: from_freq_sets{rest}"),
            Some(_) => message.to_owned(),
            None if rule(message).starts_with("cu_seqlens") => message.to_owned(), // of both
            None => format!("librope: the positions of rerotating: {}", rule(message)),
        })
    }

    /// The same with another message.
    fn with(self, change: impl FnOnce(&str) -> String) -> Error {
        Error::new(self.status(), change(self.message()))
    }

    fn new(status: i32, message: String) -> Error {
        match status {
            sys::ROPE_ERROR_INVALID_ARGUMENT => Error::InvalidArgument(message),
            sys::ROPE_ERROR_UNSUPPORTED => Error::Unsupported(message),
            sys::ROPE_ERROR_OUT_OF_MEMORY => Error::OutOfMemory(message),
            sys::ROPE_ERROR_UNAVAILABLE => Error::Unavailable(message),
            sys::ROPE_ERROR_PARSE => Error::Parse(message),
            sys::ROPE_ERROR_RUNNER => Error::Runner(message),
            sys::ROPE_ERROR_DEVICE => Error::Device(message),
            sys::ROPE_ERROR_INTERNAL => Error::Internal(message),
            status => Error::Other { status, message },
        }
    }
}

/// A message without the name before it.
fn rule(message: &str) -> &str {
    message.strip_prefix("librope: ").unwrap_or(message)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: static text, never NULL, for every number.
        let kind = unsafe { CStr::from_ptr(sys::rope_status_string(self.status())) };
        write!(f, "{} ({})", self.message(), kind.to_string_lossy())
    }
}

impl std::error::Error for Error {}

/// The result of a C call. Must run on the thread that made the call, before its next one: messages
/// belong to threads.
#[inline(always)]
pub(crate) fn check(status: sys::rope_status) -> Result<()> {
    if status == sys::ROPE_OK { Ok(()) } else { Err(last(status)) }
}

/// What a public function does. Its errors begin with its name, and are in the words of this crate.
#[inline(always)]
pub(crate) fn named<T>(function: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    match body() {
        Err(error) => Err(error.of_function(function)),
        good => good,
    }
}

/// The handle that a create function reported as made.
pub(crate) fn made<T>(handle: *mut T) -> Result<NonNull<T>> {
    NonNull::new(handle).ok_or_else(|| Error::Internal("librope: a handle is NULL".into()))
}

#[cold]
#[inline(never)]
fn last(status: sys::rope_status) -> Error {
    // SAFETY: never NULL, ends with 0, and stays until this thread's next error.
    let message = unsafe { CStr::from_ptr(sys::rope_last_error()) };
    Error::new(status, message.to_string_lossy().into_owned())
}

/// Refuses a library whose ABI may be another: before 1.0, one of another minor version. Asked by
/// whatever makes a handle or needs none; the library is asked once per process.
#[inline]
pub(crate) fn require_library() -> Result<()> {
    static LOADED: OnceLock<i32> = OnceLock::new();
    // SAFETY: takes nothing, returns a number.
    let loaded = *LOADED.get_or_init(|| unsafe { sys::rope_version() });
    if is_compatible(loaded) { Ok(()) } else { Err(incompatible(loaded)) }
}

fn is_compatible(loaded: i32) -> bool {
    const { assert!(sys::ROPE_VERSION_MAJOR == 0, "from 1.0 on, minor versions only add") }
    loaded / 100 == sys::ROPE_VERSION_MAJOR * 100 + sys::ROPE_VERSION_MINOR
}

#[cold]
fn incompatible(loaded: i32) -> Error {
    Error::Unsupported(format!(
        "librope: the loaded library is version {}.{}.{}, and this crate was made for {}.{}: before \
         1.0, minor versions have different ABIs",
        loaded / 10000,
        loaded / 100 % 100,
        loaded % 100,
        sys::ROPE_VERSION_MAJOR,
        sys::ROPE_VERSION_MINOR
    ))
}

/// A mistake that is caught on this side, before the C call could reach beyond a slice. The function that
/// was called is named by [`named`].
#[cold]
#[inline(never)]
pub(crate) fn invalid<T>(message: fmt::Arguments<'_>) -> Result<T> {
    Err(Error::InvalidArgument(format!("librope: {message}")))
}

/// The same of what this version does not offer.
#[cold]
#[inline(never)]
pub(crate) fn unsupported<T>(message: fmt::Arguments<'_>) -> Result<T> {
    Err(Error::Unsupported(format!("librope: {message}")))
}

/// A size as the C API has it; beyond that an error, with the size that was given.
#[inline]
pub(crate) fn narrow(name: &str, value: usize) -> Result<i32> {
    match i32::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => invalid(format_args!("{name} ({value}) must not be beyond {}", i32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::{incompatible, is_compatible};

    #[test]
    fn minor_versions_are_different_abis_before_1_0() {
        assert!(is_compatible(100) && is_compatible(101) && is_compatible(199));
        for other in [0, 99, 200, 10_100, 10_000, -1] {
            assert!(!is_compatible(other), "{other}");
        }
        let message = incompatible(20_345).to_string();
        assert!(message.contains("2.3.45") && message.contains("0.1"), "{message}");
    }
}
