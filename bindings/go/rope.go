// Package rope applies rotary position embedding (RoPE) to the queries and keys of attention, with
// the C library librope.
//
// A [Context] holds what belongs to the model. It is immutable and shared by all goroutines. A
// [Step] holds what belongs to one step of the program: sizes and positions. Tensors are slices:
//
//	ctx, err := rope.New(rope.Config{HeadDim: 128, Theta: 500000, Pairing: rope.PairingHalves})
//	if err != nil { ... }
//	defer ctx.Close()
//	step := rope.Step{Batch: 1, Tokens: 7, Positions: rope.Offset(0)}
//	err = rope.ApplyQK(ctx, rope.BSHD(q, 32), rope.BSHD(k, 8), step)
//
// Sizes, offsets and strides count elements. On error nothing has been written.
package rope

/*
#cgo CFLAGS: -std=c99 -O2
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Version is the version of this package.
const Version = "0.1.0"

// LibraryVersion is the version of the loaded C library.
func LibraryVersion() string {
	major, minor, patch := parts(int(C.rope_version()))
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

func parts(version int) (major, minor, patch int) {
	return version / 10000, version / 100 % 100, version % 100
}

// headerVersion is the version of the header that this package was compiled with.
func headerVersion() string {
	return fmt.Sprintf("%d.%d.%d", int(C.ROPE_VERSION_MAJOR), int(C.ROPE_VERSION_MINOR),
		int(C.ROPE_VERSION_PATCH))
}

// compatible refuses a loaded library of another minor version: before 1.0 its structs may differ.
// The functions that need no Context or Model ask it first.
var compatible = sync.OnceValue(func() error { return checkVersion(int(C.rope_version())) })

func checkVersion(loaded int) error {
	major, minor, patch := parts(loaded)
	if major == C.ROPE_VERSION_MAJOR && minor == C.ROPE_VERSION_MINOR {
		return nil
	}
	return &Error{ErrUnsupported, fmt.Sprintf("rope: the loaded librope is version %d.%d.%d, and package "+
		"rope %s needs librope %d.%d: load that one, or use the package of that librope", major, minor,
		patch, Version, int(C.ROPE_VERSION_MAJOR), int(C.ROPE_VERSION_MINOR))}
}

// Context is a model's rotation: immutable, a few KiB, valid for every position. Any number of
// goroutines may use one at once, and any of them may close it.
type Context struct {
	handle handle[contextState]
}

// contextState is the C context, and what every call asks of it.
type contextState struct {
	ptr  *C.rope_context
	info Info
	cuda bool
	nope bool // of the first set
}

// Info is what a configuration came to.
type Info struct {
	HeadDim      int // channels of a head
	RotaryDim    int // channels in which pairs lie; with ScalingProportional the whole head
	RotaryOffset int // the first of them
	Pairs        int // half of them
	Axes         int // ids per token
	FreqSets     int // frequency sets
	FreqHeads    int // heads with frequencies of their own; 0: all heads share them

	AttentionFactor float64 // already in cos and sin
	SoftmaxFactor   float64 // for the caller to multiply into the softmax scale; 1 except DeepSeek

	// The frequencies are right for sequences of ValidFrom to ValidBelow - 1 tokens: of any length (0 and
	// math.MaxInt64), except for ScalingDynamic, ScalingDynamicSteps and ScalingLongRope. ValidFrom may
	// be less than SeqLen. That positions are beyond the one is an error of calls; that a sequence is too
	// short for the other is not to be seen by them.
	ValidFrom, ValidBelow int64

	invFreqCount int
}

// New makes a context. It takes microseconds: one per kind of layer at load time, not one per call.
// Close gives it back. A context that is forgotten is freed by the garbage collector, which does not see
// its C memory: what is made for every length (dynamic NTK) is better closed.
func New(cfg Config) (*Context, error) {
	return create("New", []Config{cfg}, false)
}

// NewSets makes one context with several sets of frequencies, for batches whose sequences differ in
// them: LongRoPE on both sides of its switch, lengths of dynamic NTK. Calls then name the set of every
// sequence in Step.FreqSets.
func NewSets(cfgs []Config) (*Context, error) {
	if len(cfgs) < 1 || len(cfgs) > 256 {
		return nil, invalid("NewSets", "the number of cfgs (%d) must be from 1 to 256", len(cfgs))
	}
	return create("NewSets", cfgs, true)
}

func create(function string, cfgs []Config, sets bool) (*Context, error) {
	if err := compatible(); err != nil {
		return nil, err
	}
	var tables memory
	defer tables.free()
	raw := make([]C.rope_config, len(cfgs))
	for i := range cfgs {
		if err := cfgs[i].fill(function, &raw[i], &tables); err != nil {
			return nil, err
		}
	}
	b := new(body[contextState])
	state := &b.value
	err := check(function, C.ropego_context_create(unsafe.SliceData(raw), C.int32_t(len(raw)),
		boolean(sets), &state.ptr))
	if err != nil {
		return nil, err
	}
	c := new(Context)
	c.handle.set(b, (*contextState).destroy,
		runtime.AddCleanup(b, destroyContext, uintptr(unsafe.Pointer(state.ptr))))
	state.cuda, state.nope = cfgs[0].Device.CUDA, cfgs[0].Scaling == ScalingNope
	if state.info, err = state.infoOf(0); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (s *contextState) destroy() { C.rope_context_destroy(s.ptr) }

// destroyContext takes the pointer as a number, because it is C memory that Go must not follow.
func destroyContext(ptr uintptr) {
	C.rope_context_destroy(*(**C.rope_context)(unsafe.Pointer(&ptr)))
}

// Close gives the context up: later calls return an ErrClosed. Its memory is freed now, or by the last of
// the calls that are under way, which finish. Closing twice is allowed, and so is closing nil.
func (c *Context) Close() error {
	c.ref().close()
	return nil
}

// ref is the handle, which nil has not.
func (c *Context) ref() *handle[contextState] {
	if c == nil {
		return nil
	}
	return &c.handle
}

// Info tells the resolved values of one frequency set, which is 0 when there is one.
func (c *Context) Info(freqSet int) (Info, error) {
	use, open := c.ref().enter()
	if !open {
		return Info{}, closed("Info", "the Context c")
	}
	defer use.leave()
	return use.body.value.infoOf(freqSet)
}

func (s *contextState) infoOf(freqSet int) (Info, error) {
	numbers := narrow{function: "Info"}
	set := numbers.int32("freqSet", freqSet)
	if numbers.err != nil {
		return Info{}, numbers.err
	}
	var raw C.rope_info
	if err := check("Info", C.ropego_context_info(s.ptr, set, &raw)); err != nil {
		return Info{}, err
	}
	return Info{
		HeadDim:         int(raw.head_dim),
		RotaryDim:       int(raw.rotary_dim),
		RotaryOffset:    int(raw.rotary_offset),
		Pairs:           int(raw.pairs),
		Axes:            int(raw.axes),
		FreqSets:        int(raw.freq_sets),
		FreqHeads:       int(raw.freq_heads),
		invFreqCount:    int(raw.inv_freq_count),
		AttentionFactor: float64(raw.attention_factor),
		SoftmaxFactor:   float64(raw.softmax_factor),
		ValidFrom:       int64(raw.valid_from),
		ValidBelow:      int64(raw.valid_below),
	}, nil
}

// ValidBelow is Info.ValidBelow of frequency set 0: the smallest length of a sequence above its SeqLen
// for which the context is wrong. A closed context is right for none: 0.
func (c *Context) ValidBelow() int64 {
	state := c.ref().peek()
	if state == nil {
		return 0
	}
	return state.info.ValidBelow
}

// ValidFrom is Info.ValidFrom of frequency set 0: the smallest length of a sequence for which the context
// is right, 0 for most. A closed context is right for none, and its ValidBelow says so: 0.
func (c *Context) ValidFrom() int64 {
	state := c.ref().peek()
	if state == nil {
		return 0
	}
	return state.info.ValidFrom
}

// InvFreq returns the frequencies of one set, one per pair; of Config.Frequency the whole table.
func (c *Context) InvFreq(freqSet int) ([]float64, error) {
	use, open := c.ref().enter()
	if !open {
		return nil, closed("InvFreq", "the Context c")
	}
	defer use.leave()
	state := &use.body.value
	numbers := narrow{function: "InvFreq"}
	set := numbers.int32("freqSet", freqSet)
	if numbers.err != nil {
		return nil, numbers.err
	}
	out := make([]float64, state.info.invFreqCount)
	data := (*C.double)(unsafe.SliceData(out))
	err := check("InvFreq", C.ropego_context_inv_freq(state.ptr, set, data, C.int32_t(len(out))))
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Backend names what does the work, for logs: "cpu AVX3", "cuda:0 sm_90"; "" after Close.
func (c *Context) Backend() string {
	use, open := c.ref().enter()
	if !open {
		return ""
	}
	defer use.leave()
	return use.body.value.backend()
}

func (s *contextState) backend() string { return C.GoString(C.rope_context_backend(s.ptr)) }
