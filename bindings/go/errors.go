package rope

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// Status says what kind of mistake an [Error] is. It is an error itself, so that errors.Is works with
// the Err constants. Others may come: every negative number is an error.
type Status int32

// Error names the status.
func (s Status) Error() string { return C.GoString(C.rope_status_string(C.rope_status(s))) }

// Error is what functions of this package return, for errors.As; what wraps ErrClosed alone is another.
type Error struct {
	Status  Status
	Message string // names the function, the field, its value and the rule that it breaks
}

func (e *Error) Error() string { return e.Message + " (" + e.Status.Error() + ")" }

// Unwrap makes errors.Is(err, rope.ErrParse) work.
func (e *Error) Unwrap() error { return e.Status }

// ErrClosed is that of calls with a Context, Prepared, Model or Pool after Close, and with one that was never
// made: nil (a context of which only the error was looked at, or not even that) and the zero value. What they
// return wraps it, for errors.Is, and names the function and what is closed.
var ErrClosed = errors.New("rope: a context, prepared call, model or pool that is closed, or was never made")

// closedError wraps ErrClosed.
type closedError struct{ function, what string }

func (e *closedError) Error() string {
	return "rope." + e.function + ": " + e.what + " is closed, or was never made"
}

func (e *closedError) Unwrap() error { return ErrClosed }

// closed is the error of a handle, which is the argument or the receiver of this function.
func closed(function, what string) error { return &closedError{function, what} }

// check takes over what the shim allocated for an error of the Go function of this name.
func check(function string, raw *C.ropego_error) error {
	if raw == nil {
		return nil
	}
	return take(function, raw)
}

func take(function string, raw *C.ropego_error) error {
	text := (*C.char)(unsafe.Add(unsafe.Pointer(raw), unsafe.Sizeof(raw.status)))
	err := &Error{Status(raw.status), inGo(function, C.GoString(text))}
	C.ropego_error_free(raw)
	return err
}

// invalid is a mistake that is caught here, before C could reach beyond a slice.
func invalid(function, format string, args ...any) error {
	return &Error{ErrInvalidArgument, "rope." + function + ": " + fmt.Sprintf(format, args...)}
}

// unsupported is what the library does not offer, caught here.
func unsupported(function, format string, args ...any) error {
	return &Error{ErrUnsupported, "rope." + function + ": " + fmt.Sprintf(format, args...)}
}

func outOfMemory(function, format string, args ...any) error {
	return &Error{ErrOutOfMemory, "rope." + function + ": " + fmt.Sprintf(format, args...)}
}

// narrow is what C holds in 32 bits. The first value that does not fit is kept for an error.
type narrow struct {
	function string
	err      error
}

func (n *narrow) int32(field string, value int) C.int32_t {
	if int64(value) != int64(int32(value)) && n.err == nil {
		beyond, bound := "beyond", int64(math.MaxInt32)
		if value < 0 {
			beyond, bound = "below", math.MinInt32
		}
		n.err = invalid(n.function, "%s (%d) must not be %s %d", field, value, beyond, bound)
	}
	return C.int32_t(value)
}
