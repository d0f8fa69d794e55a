use std::ffi::CStr;
use std::fmt;

use librope_sys as sys;

/// What a function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused. Every variant holds a message that names the field, its value and the
/// rule that it breaks, such as `rope_apply_qk: args->k.heads (0) must be positive`.
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
    /// The runner failed: the outputs are unspecified.
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

#[cold]
#[inline(never)]
fn last(status: sys::rope_status) -> Error {
    // SAFETY: never NULL, ends with 0, and stays until this thread's next error.
    let message = unsafe { CStr::from_ptr(sys::rope_last_error()) };
    Error::new(status, message.to_string_lossy().into_owned())
}

/// A mistake that is caught on this side, before the C call could reach beyond a slice.
#[cold]
#[inline(never)]
pub(crate) fn invalid<T>(message: fmt::Arguments<'_>) -> Result<T> {
    Err(Error::InvalidArgument(format!("librope: {message}")))
}
