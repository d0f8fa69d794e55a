package rope

/*
// The call keeps no pointer and calls nothing in Go: its arguments stay on the stack.
#cgo noescape ropego_apply_qk
#cgo nocallback ropego_apply_qk
#cgo noescape ropego_apply_thd
#cgo nocallback ropego_apply_thd
#include "shim.h"
*/
import "C"

import (
	"math"
	"strings"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// Operation is what a call does. With R(p) the rotation by position p and a the attention factor,
// forward and shift, and backward and inverse, differ unless a is 1.
//
// With OperationShift positions are distances: Same for all tokens, TokenIDs and its kind for each;
// Offset and SeqOffsets are an error. It needs AngleExact, and keys of 16 bits keep their norm best
// with RoundingFloat32.
//
// With OperationRerotate keys move from the positions of Step.From to Step.Positions.
type Operation int32

// Step is what belongs to one step of the program and is the same for all its layers.
type Step struct {
	Batch  int // required: 1 for packed sequences; 0 only with empty tensors
	Tokens int // of each batch row; 0: nothing is done

	// Exactly one of the two.
	Positions Positions
	CosSin    *CosSin // forward and backward only

	Operation Operation
	// Packed sequences: sequence s is tokens CuSeqlens[s] to CuSeqlens[s+1]-1.
	CuSeqlens []int32
	FreqSets  []int32 // the frequency set of every sequence, for contexts with several
	// 0 or 1; or so many batch rows, one after the other, share their positions (ids, offset, frequency set), of
	// which there are those of Batch / BatchRepeat rows: for the groups of a grouped QKV [tokens, batch, groups, q
	// + 2, channels], each of which is a batch row. With CuSeqlens it is the batch.
	BatchRepeat int
	Shard       Shard  // the tokens are those that one of several ranks has: for Offset and SeqOffsets
	Slots       *Slots // where in a cache the tokens go: for Append and its kind and moves alone, which need it
	Norms       *Norms // of the layer whose call is next, unlike the rest: q, k and v are normed, too

	// OperationRerotate: where the keys were, and in which frequency sets (nil: in FreqSets).
	From         *Positions
	FromFreqSets []int32
	Source       *Slots // where in a cache the tokens are read: for moves alone; nil: where they go
	// Keys that a move reads have not turned yet, as OperationForward needs them: without it, a move whose
	// Operation was forgotten is refused. For MoveSlots and MoveBetween alone.
	Unturned bool

	Pool *Pool // nil: the calling thread
}

// ApplyQK rotates q and k in place. They are names only: any tensor will do, their types may differ,
// and either may be the zero value. Both may lie in one buffer, as long as they do not overlap.
func ApplyQK[Q, K Element](c *Context, q Tensor[Q], k Tensor[K], step Step) error {
	return apply("ApplyQK", c, &q, &k, nil, nil, &step)
}

// ApplyQKTo rotates q into qOut and k into kOut. An output may be exactly its input, and may not
// overlap any tensor otherwise; the zero value as an output rotates in place. Channels outside the
// rotated span are copied if both hold whole heads, and left alone if not.
func ApplyQKTo[Q, K Element](c *Context, qOut Tensor[Q], kOut Tensor[K], q Tensor[Q], k Tensor[K],
	step Step) error {
	return apply("ApplyQKTo", c, &q, &k, &qOut, &kOut, &step)
}

func apply[Q, K Element](function string, c *Context, q *Tensor[Q], k *Tensor[K], qOut *Tensor[Q],
	kOut *Tensor[K], step *Step) error {
	use, err := c.forSlices(function)
	if err != nil {
		return err
	}
	defer use.leave()
	state := &use.body.value
	if step.Batch == 0 && step.Tokens > 0 && len(q.Data)|len(k.Data) != 0 {
		return step.noBatch(function)
	}
	if step.Slots != nil || step.Source != nil {
		return noSlots(function)
	}
	if step.Unturned {
		return step.noUnturned(function)
	}
	if step.From != nil || step.Operation == OperationRerotate {
		return rerotate(function, state, q, k, qOut, kOut, step)
	}
	if step.Norms != nil {
		return storeIn(function, state, q, k, &Tensor[float32]{}, qOut, kOut, nil, (*KVCache[float32, float32])(nil), step)
	}
	var call C.ropego_call
	if err := step.check(function, &call, state); err != nil {
		return err
	}
	qData, qOutData, err := describe(function, "q", "qOut", q, qOut, &call.q, &call.q_out, state, step)
	if err != nil {
		return err
	}
	kData, kOutData, err := describe(function, "k", "kOut", k, kOut, &call.k, &call.k_out, state, step)
	if err != nil {
		return err
	}
	var cos, sin *C.uint8_t
	if rows := step.CosSin; rows != nil {
		if err := rows.check(function, &call.rows, state, step, false); err != nil {
			return err
		}
		cos, sin = (*C.uint8_t)(rows.data), (*C.uint8_t)(rows.sin)
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return closed(function, "Step.Pool")
		}
	}
	raw := C.ropego_apply_qk(state.ptr, &call, qData, kData, qOutData, kOutData,
		(*C.uint8_t)(step.Positions.ids), (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(step.FreqSets)), cos, sin, pool)
	if pool != nil {
		step.Pool.leave()
	}
	if raceEnabled && raw == nil {
		step.tellRace(state, false)
		tellRace(q, qOut, nil, state, step)
		tellRace(k, kOut, nil, state, step)
	}
	return check(function, raw)
}

// noBatch is the error of a field that was forgotten.
func (step *Step) noBatch(function string) error {
	return invalid(function, "Step.Batch (0) is required: 1 for packed sequences and for one sequence, 0 only "+
		"with empty tensors")
}

// noMove is the error of what moves alone have. As the library says, they cannot be prepared.
func (step *Step) noMove(function string) error {
	const text = "Step.Source and Step.From must be nil: MoveSlots moves what a cache holds"
	if step.Source != nil && strings.HasPrefix(function, "Prepare") {
		return unsupported(function, text)
	}
	return invalid(function, text)
}

// noUnturned is the error of a call whose operation says all.
func (step *Step) noUnturned(function string) error {
	return invalid(function, "Step.Unturned (true) must be false: it is for the keys that MoveSlots and MoveBetween read")
}

// noSlots is the error of a call that would not look at them.
func noSlots(function string) error {
	return invalid(function, "Step.Slots must be nil, and so must Step.Source: Append stores k and v, MoveSlots moves them")
}

// describe fills the C tensors of one input and its output, which may be nil.
func describe[T Element](function, name, outName string, in, out *Tensor[T], rawIn, rawOut *C.ropego_tensor,
	c *contextState, step *Step) (data, outData *C.uint8_t, err error) {
	hasIn, hasOut := given(in, out)
	if hasIn {
		if data, err = in.check(function, name, rawIn, c, step); err != nil {
			return nil, nil, err
		}
	}
	if hasOut {
		if outData, err = out.check(function, outName, rawOut, c, step); err != nil {
			return nil, nil, err
		}
	}
	return data, outData, nil
}

// ApplyTHD rotates contiguous q[tokens, qHeads, HeadDim] and k[tokens, kHeads, HeadDim] in place,
// token t by positions[t]: any int64. Either may be empty with 0 heads. For contexts with one axis and
// one frequency set.
func ApplyTHD[T Element](c *Context, positions []int64, q []T, qHeads int, k []T, kHeads int) error {
	use, err := c.forSlices("ApplyTHD")
	if err != nil {
		return err
	}
	defer use.leave()
	state := &use.body.value
	tokens := len(positions)
	if !extent.Fills(len(q), tokens, qHeads, state.info.HeadDim) ||
		!extent.Fills(len(k), tokens, kHeads, state.info.HeadDim) || max(qHeads, kHeads) > math.MaxInt32 {
		return invalid("ApplyTHD", "q (%d elements, %d heads) and k (%d elements, %d heads) must have %d "+
			"tokens of heads * %d channels", len(q), qHeads, len(k), kHeads, tokens, state.info.HeadDim)
	}
	if tokens == 0 {
		return nil
	}
	// An empty slice may have an address, which 0 heads must not have.
	var qData, kData *T
	if qHeads != 0 {
		qData = unsafe.SliceData(q)
	}
	if kHeads != 0 {
		kData = unsafe.SliceData(k)
	}
	raw := C.ropego_apply_thd(state.ptr, C.int32_t(dtypeOf[T]()), C.int64_t(tokens),
		(*C.int64_t)(unsafe.SliceData(positions)), (*C.uint8_t)(unsafe.Pointer(qData)), C.int32_t(qHeads),
		(*C.uint8_t)(unsafe.Pointer(kData)), C.int32_t(kHeads))
	if raceEnabled && raw == nil {
		step := &Step{Batch: 1, Tokens: tokens, Positions: TokenIDs(positions)}
		qTensor, kTensor := BSHD(q, qHeads), BSHD(k, kHeads)
		step.tellRace(state, false)
		tellRace(&qTensor, nil, nil, state, step)
		tellRace(&kTensor, nil, nil, state, step)
	}
	return check("ApplyTHD", raw)
}

// forSlices begins a call with a context whose tensors are slices.
func (c *Context) forSlices(function string) (use[contextState], error) {
	use, open := c.ref().enter()
	if !open {
		return use, closed(function, "the Context c")
	}
	if state := &use.body.value; state.cuda {
		defer use.leave()
		return use, invalid(function, "the context is one of a CUDA device (%s), and slices are main memory",
			state.backend())
	}
	return use, nil
}

// FillCosSin writes the rows of cos and sin of the step's positions: to fill an engine's cache in its
// own layout, or once per step for all layers (Step.CosSin). Of the step its positions count, and neither its
// operation nor what calls read besides.
func FillCosSin(c *Context, step Step, out *CosSin) error {
	use, err := c.forSlices("FillCosSin")
	if err != nil {
		return err
	}
	defer use.leave()
	state := &use.body.value
	if step.CosSin != nil {
		return invalid("FillCosSin", "Step.CosSin must be nil: rows come from positions")
	}
	if step.Batch == 0 && step.Tokens > 0 && out != nil && out.len != 0 {
		return step.noBatch("FillCosSin")
	}
	step.Operation = OperationForward // of the step, positions count
	call := new(C.ropego_call)
	if err := step.check("FillCosSin", call, state); err != nil {
		return err
	}
	if err := out.check("FillCosSin", &call.rows, state, &step, true); err != nil {
		return err
	}
	raw := C.ropego_cos_sin_fill(state.ptr, call, (*C.uint8_t)(step.Positions.ids),
		(*C.int32_t)(unsafe.SliceData(step.CuSeqlens)), (*C.int32_t)(unsafe.SliceData(step.FreqSets)),
		(*C.uint8_t)(out.data), (*C.uint8_t)(out.sin))
	if raceEnabled && raw == nil {
		step.CosSin = out
		step.tellRace(state, true)
	}
	return check("FillCosSin", raw)
}
