// Package rope applies rotary position embedding (RoPE) to the queries and keys of attention, with
// the C library librope.
//
// A [Context] holds what belongs to the model. It is immutable and shared by all goroutines. A
// [Step] holds what belongs to one step of the program: sizes and positions. Tensors are slices:
//
//	ctx, err := rope.New(rope.Config{HeadDim: 128, Theta: 500000, Pairing: rope.Halves})
//	if err != nil { ... }
//	defer ctx.Close()
//	step := rope.Step{Batch: 1, Tokens: 7, Positions: rope.Offset(0)}
//	err = rope.ApplyQK(ctx, rope.BSHD(q, 32), rope.BSHD(k, 8), step)
//
// Sizes, offsets and strides count elements. On error nothing has been written.
package rope

/*
#cgo pkg-config: librope
#cgo CFLAGS: -std=c99 -O2
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// Version is the version of this package.
const Version = "0.1.0"

// LibraryVersion is the version of the loaded C library.
func LibraryVersion() string {
	v := int(C.rope_version())
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// headerVersion is the version of the header that this package was compiled with.
func headerVersion() string {
	return fmt.Sprintf("%d.%d.%d", int(C.ROPE_VERSION_MAJOR), int(C.ROPE_VERSION_MINOR),
		int(C.ROPE_VERSION_PATCH))
}

// Context is a model's rotation: immutable, a few hundred bytes, valid for every position. Any
// number of goroutines may use one at once; only Close needs it alone.
type Context struct {
	ptr     *C.rope_context
	cleanup runtime.Cleanup
	info    Info
	cuda    bool
}

// Info is what a configuration came to.
type Info struct {
	HeadDim      int // channels of a head
	RotaryDim    int // channels in which pairs lie; with Proportional the whole head
	RotaryOffset int // the first of them
	Pairs        int // half of them
	Axes         int // ids per token
	FreqSets     int // frequency sets

	AttentionFactor float64 // already in cos and sin
	SoftmaxFactor   float64 // for the caller to multiply into the softmax scale; 1 except DeepSeek
}

// New makes a context. It takes microseconds: one per kind of layer at load time, not one per call.
// Close frees it; a context that is forgotten is freed by the garbage collector.
func New(cfg Config) (*Context, error) {
	return create([]Config{cfg}, false)
}

// NewSets makes one context with several sets of frequencies, for batches whose sequences differ in
// them: LongRope on both sides of its switch, lengths of Dynamic. Calls then name the set of every
// sequence in Step.FreqSets.
func NewSets(cfgs []Config) (*Context, error) {
	if len(cfgs) > 256 {
		return nil, invalid("%d sets are more than 256", len(cfgs))
	}
	return create(cfgs, true)
}

func create(cfgs []Config, sets bool) (*Context, error) {
	var tables memory
	defer tables.free()
	raw := make([]C.rope_config, len(cfgs))
	for i := range cfgs {
		if err := cfgs[i].fill(&raw[i], &tables); err != nil {
			return nil, err
		}
	}
	var several C.int32_t
	if sets {
		several = 1
	}
	c := new(Context)
	err := check(C.ropego_context_create(unsafe.SliceData(raw), C.int32_t(len(raw)), several, &c.ptr))
	if err != nil {
		return nil, err
	}
	c.cleanup = runtime.AddCleanup(c, destroyContext, uintptr(unsafe.Pointer(c.ptr)))
	c.cuda = cfgs[0].Device.CUDA
	c.info, err = c.Info(0)
	return c, err
}

// destroyContext takes the pointer as a number, because it is C memory that Go must not follow.
func destroyContext(ptr uintptr) {
	C.rope_context_destroy(*(**C.rope_context)(unsafe.Pointer(&ptr)))
}

// Close frees the context. No call may still use it. Closing twice is allowed.
func (c *Context) Close() error {
	if c.ptr != nil {
		c.cleanup.Stop()
		C.rope_context_destroy(c.ptr)
		c.ptr = nil
	}
	return nil
}

// Info tells the resolved values of one frequency set, which is 0 when there is one.
func (c *Context) Info(freqSet int) (Info, error) {
	if c.ptr == nil {
		return Info{}, ErrClosed
	}
	var raw C.rope_info
	err := check(C.ropego_context_info(c.ptr, int32Of(freqSet), &raw))
	runtime.KeepAlive(c)
	return Info{
		HeadDim:         int(raw.head_dim),
		RotaryDim:       int(raw.rotary_dim),
		RotaryOffset:    int(raw.rotary_offset),
		Pairs:           int(raw.pairs),
		Axes:            int(raw.axes),
		FreqSets:        int(raw.freq_sets),
		AttentionFactor: float64(raw.attention_factor),
		SoftmaxFactor:   float64(raw.softmax_factor),
	}, err
}

// InvFreq returns the frequencies of one set, one per pair.
func (c *Context) InvFreq(freqSet int) ([]float64, error) {
	if c.ptr == nil {
		return nil, ErrClosed
	}
	out := make([]float64, c.info.Pairs)
	data := (*C.double)(unsafe.SliceData(out))
	err := check(C.ropego_context_inv_freq(c.ptr, int32Of(freqSet), data, C.int32_t(len(out))))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Backend names what does the work, for logs: "cpu AVX3", "cuda:0 sm_90".
func (c *Context) Backend() string {
	if c.ptr == nil {
		return ""
	}
	name := C.GoString(C.rope_context_backend(c.ptr))
	runtime.KeepAlive(c)
	return name
}

// Status says what kind of mistake an [Error] is. It is an error itself, so that errors.Is works with
// the Err constants.
type Status int32

// The statuses of the library. Others may come: every negative number is an error.
const (
	ErrInvalidArgument Status = C.ROPE_ERROR_INVALID_ARGUMENT // a value breaks a documented rule
	ErrUnsupported     Status = C.ROPE_ERROR_UNSUPPORTED      // not offered by this version
	ErrOutOfMemory     Status = C.ROPE_ERROR_OUT_OF_MEMORY
	ErrUnavailable     Status = C.ROPE_ERROR_UNAVAILABLE // no such device, or built without it
	ErrParse           Status = C.ROPE_ERROR_PARSE       // config.json; the message names the key
	ErrRunner          Status = C.ROPE_ERROR_RUNNER      // outputs are unspecified
	ErrDevice          Status = C.ROPE_ERROR_DEVICE      // outputs are unspecified
	ErrInternal        Status = C.ROPE_ERROR_INTERNAL
)

// Error names the status.
func (s Status) Error() string { return C.GoString(C.rope_status_string(C.rope_status(s))) }

// Error is what functions of this package return, for errors.As.
type Error struct {
	Status  Status
	Message string // names the field, its value and the rule that it breaks
}

func (e *Error) Error() string { return e.Message + " (" + e.Status.Error() + ")" }

// Unwrap makes errors.Is(err, rope.ErrParse) work.
func (e *Error) Unwrap() error { return e.Status }

// ErrClosed is returned by calls after Close.
var ErrClosed = errors.New("rope: used after Close")

// check takes over what the shim allocated for an error.
func check(raw *C.ropego_error) error {
	if raw == nil {
		return nil
	}
	return take(raw)
}

func take(raw *C.ropego_error) error {
	text := (*C.char)(unsafe.Add(unsafe.Pointer(raw), unsafe.Sizeof(raw.status)))
	err := &Error{Status(raw.status), C.GoString(text)}
	C.free(unsafe.Pointer(raw))
	return err
}

// invalid is a mistake that is caught here, before C could reach beyond a slice.
func invalid(format string, args ...any) error {
	return &Error{ErrInvalidArgument, "rope: " + fmt.Sprintf(format, args...)}
}

// int32Of saturates: the library refuses what is too large.
func int32Of(n int) C.int32_t {
	return C.int32_t(max(math.MinInt32, min(math.MaxInt32, n)))
}

// memory is C memory of one call.
type memory []unsafe.Pointer

func (m *memory) free() {
	for _, p := range *m {
		C.free(p)
	}
}

// copyTable copies a table to C memory; nil if it is empty.
func copyTable[T float64 | uint8](m *memory, table []T) unsafe.Pointer {
	if len(table) == 0 {
		return nil
	}
	size := uintptr(len(table)) * unsafe.Sizeof(table[0])
	p := C.malloc(C.size_t(size))
	*m = append(*m, p)
	copy(unsafe.Slice((*T)(p), len(table)), table)
	return p
}
