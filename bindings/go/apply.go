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
	"math/bits"
	"runtime"
	"unsafe"
)

// Float16 is an IEEE half, as bits.
type Float16 uint16

// BFloat16 is the upper half of a float32, as bits.
type BFloat16 uint16

// Element is a type of the elements of tensors.
type Element interface {
	~float32 | Float16 | BFloat16
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case Float16:
		return F16
	case BFloat16:
		return BF16
	}
	return F32
}

// Layout is the order of the dimensions, outermost first. Channels of a head are always adjacent.
type Layout int32

// The layouts.
const (
	LayoutBSHD    Layout = C.ROPE_LAYOUT_BSHD    // contiguous [batch, tokens, heads, channels]
	LayoutBHSD    Layout = C.ROPE_LAYOUT_BHSD    // contiguous [batch, heads, tokens, channels]
	LayoutSBHD    Layout = C.ROPE_LAYOUT_SBHD    // contiguous [tokens, batch, heads, channels]
	LayoutStrided Layout = C.ROPE_LAYOUT_STRIDED // Strides, literally
)

// Strides are distances in elements.
type Strides struct {
	Batch, Token int
	Head         int // 0 in an input repeats one head for all
}

// Tensor is q, k or an output: a slice, its layout and its heads. The zero value is no tensor.
// A contiguous layout must fill Data exactly.
type Tensor[T Element] struct {
	Data    []T
	Layout  Layout
	Heads   int
	Strides Strides // LayoutStrided only
	// Span: each "head" is the rotated span alone, as DeepSeek's k_pe or a slice of a wider row.
	Span bool
}

// BSHD is a contiguous [batch, tokens, heads, channels]; with batch 1 also [tokens, heads, channels].
func BSHD[T Element](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutBSHD, Heads: heads}
}

// BHSD is a contiguous [batch, heads, tokens, channels].
func BHSD[T Element](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutBHSD, Heads: heads}
}

// SBHD is a contiguous [tokens, batch, heads, channels].
func SBHD[T Element](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutSBHD, Heads: heads}
}

// Strided has strides of its own, from the first element of data.
func Strided[T Element](data []T, heads int, strides Strides) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutStrided, Heads: heads, Strides: strides}
}

// Operation is what a call does. With R(p) the rotation by position p and a the attention factor,
// these are four different things unless a is 1.
type Operation int32

// The operations.
const (
	Forward  Operation = C.ROPE_FORWARD  // a R(p) x: rotates
	Backward Operation = C.ROPE_BACKWARD // a R(-p) x: gradient of Forward
	Inverse  Operation = C.ROPE_INVERSE  // 1/a R(-p) x: undoes Forward
	Shift    Operation = C.ROPE_SHIFT    // R(p) x: moves rotated keys by p, negative too
)

// Step is what belongs to one step of the program and is the same for all its layers.
type Step struct {
	Batch  int // required: 1 for packed sequences
	Tokens int // of each batch row; 0: nothing is done

	// Exactly one of the two.
	Positions Positions
	CosSin    *CosSin // forward and backward only

	Operation Operation
	// Packed sequences: sequence s is tokens CuSeqlens[s] to CuSeqlens[s+1]-1.
	CuSeqlens []int32
	FreqSets  []int32 // the frequency set of every sequence, for contexts with several
	Pool      *Pool   // nil: the calling thread
}

// Positions says where the positions of tokens come from. Kinds without axes use one id for all axes
// (text).
type Positions struct {
	kind                                 int32
	typ                                  int32 // as ropego_positions.type
	ids                                  unsafe.Pointer
	len                                  int
	offset                               int64
	strideAxis, strideBatch, strideToken int
}

// Offset puts token i of every sequence at offset + i.
func Offset(offset int64) Positions {
	return Positions{kind: C.ROPE_POSITIONS_OFFSET, offset: offset}
}

// SeqOffsets puts token i of sequence s at offsets[s] + i: what is cached before this step. Sequences
// are the batch rows, or the runs that Step.CuSeqlens cuts.
func SeqOffsets[I int32 | int64](offsets []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_SEQ_OFFSETS, offsets)
}

// TokenIDs is ids[tokens], the same for all batch rows.
func TokenIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_T, ids)
}

// BatchTokenIDs is ids[batch, tokens]: position_ids.
func BatchTokenIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_BT, ids)
}

// AxesBatchTokenIDs is ids[axes, batch, tokens]: position_ids of mrope.
func AxesBatchTokenIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_ABT, ids)
}

// BatchTokenAxesIDs is ids[batch, tokens, axes]: coordinates of patches.
func BatchTokenAxesIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_BTA, ids)
}

// StridedIDs has strides of its own; 0 repeats.
func StridedIDs[I int32 | int64 | float32](ids []I, axis, batch, token int) Positions {
	p := positionsOf(C.ROPE_POSITIONS_IDS_STRIDED, ids)
	p.strideAxis, p.strideBatch, p.strideToken = axis, batch, token
	return p
}

func positionsOf[I int32 | int64 | float32](kind int32, ids []I) Positions {
	var zero I
	typ := int32(unsafe.Sizeof(zero))
	if _, float := any(zero).(float32); float {
		typ = -typ
	}
	p := Positions{kind: kind, typ: typ, ids: unsafe.Pointer(unsafe.SliceData(ids)), len: len(ids)}
	if p.ids == nil {
		p.ids = unsafe.Pointer(&nothing) // an empty array is not a missing one
	}
	return p
}

// nothing stands for the memory of empty slices, which have none.
var nothing [2]uint64

// ApplyQK rotates q and k in place. They are names only: any tensor will do, and either may be the
// zero value. Both may lie in one buffer, as long as they do not overlap.
func ApplyQK[T Element](c *Context, q, k Tensor[T], step Step) error {
	return apply(c, &q, &k, nil, nil, &step)
}

// ApplyQKTo rotates q and k into qOut and kOut. An output may be exactly its input, and may not
// overlap any tensor otherwise. Channels outside the rotated span are copied if both hold whole
// heads, and left alone if not.
func ApplyQKTo[T Element](c *Context, qOut, kOut, q, k Tensor[T], step Step) error {
	return apply(c, &q, &k, &qOut, &kOut, &step)
}

func apply[T Element](c *Context, q, k, qOut, kOut *Tensor[T], step *Step) error {
	var call C.ropego_call
	if err := c.begin(&call, step); err != nil {
		return err
	}
	dtype := dtypeOf[T]()
	qData, err := q.check("q", &call.q, c, step, dtype)
	if err != nil {
		return err
	}
	kData, err := k.check("k", &call.k, c, step, dtype)
	if err != nil {
		return err
	}
	var qOutData, kOutData *C.uint8_t
	if qOut != nil {
		if qOutData, err = qOut.check("qOut", &call.q_out, c, step, dtype); err != nil {
			return err
		}
		if kOutData, err = kOut.check("kOut", &call.k_out, c, step, dtype); err != nil {
			return err
		}
	}
	var cos, sin *C.uint8_t
	if rows := step.CosSin; rows != nil {
		if err := rows.check(&call.rows, c, step, false); err != nil {
			return err
		}
		cos, sin = (*C.uint8_t)(rows.data), (*C.uint8_t)(rows.sin)
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.ptr; pool == nil {
			return ErrClosed
		}
	}
	raw := C.ropego_apply_qk(c.ptr, &call, qData, kData, qOutData, kOutData,
		(*C.uint8_t)(step.Positions.ids), (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(step.FreqSets)), cos, sin, pool)
	runtime.KeepAlive(c)
	runtime.KeepAlive(step.Pool)
	return check(raw)
}

// ApplyTHD rotates contiguous q[tokens, qHeads, HeadDim] and k[tokens, kHeads, HeadDim] in place,
// token t by positions[t]: any int64. Either may be nil with 0 heads. For contexts with one axis and
// one frequency set.
func ApplyTHD[T Element](c *Context, positions []int64, q []T, qHeads int, k []T, kHeads int) error {
	if c.ptr == nil {
		return ErrClosed
	}
	tokens := len(positions)
	if !fills(len(q), tokens, qHeads, c.info.HeadDim) || !fills(len(k), tokens, kHeads, c.info.HeadDim) {
		return invalid("q (%d elements, %d heads) and k (%d elements, %d heads) must have %d tokens of "+
			"heads * %d channels", len(q), qHeads, len(k), kHeads, tokens, c.info.HeadDim)
	}
	if tokens == 0 {
		return nil
	}
	raw := C.ropego_apply_thd(c.ptr, C.int32_t(dtypeOf[T]()), C.int64_t(tokens),
		(*C.int64_t)(unsafe.SliceData(positions)),
		(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(q))), C.int32_t(qHeads),
		(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(k))), C.int32_t(kHeads))
	runtime.KeepAlive(c)
	return check(raw)
}

// begin fills sizes and positions after checking that every id lies inside its slice.
func (c *Context) begin(call *C.ropego_call, step *Step) error {
	if c.ptr == nil {
		return ErrClosed
	}
	if c.cuda {
		return invalid("this context lives on %s, and slices are main memory", c.Backend())
	}
	call.batch, call.tokens = C.int64_t(step.Batch), C.int64_t(step.Tokens)
	call.operation = C.int32_t(step.Operation)
	p := &step.Positions
	call.positions.kind = C.int32_t(p.kind)
	call.positions._type = C.int32_t(p.typ)
	call.positions.offset = C.int64_t(p.offset)
	if p.typ == 0 && step.CuSeqlens == nil && step.FreqSets == nil {
		return nil
	}
	return c.checkArrays(call, step)
}

func (c *Context) checkArrays(call *C.ropego_call, step *Step) error {
	p := &step.Positions
	batch, tokens := max(0, step.Batch), max(0, step.Tokens)
	sequences := batch
	if step.CuSeqlens != nil {
		sequences = len(step.CuSeqlens) - 1
		if sequences < 0 || sequences > math.MaxInt32 {
			return invalid("CuSeqlens (%d entries) must have one entry more than sequences",
				len(step.CuSeqlens))
		}
		call.positions.sequences = C.int32_t(sequences)
	}
	if step.FreqSets != nil && len(step.FreqSets) != sequences {
		return invalid("FreqSets has %d entries, and the call has %d sequences", len(step.FreqSets),
			sequences)
	}
	if p.typ == 0 {
		return nil
	}
	good := true
	switch p.kind {
	case C.ROPE_POSITIONS_SEQ_OFFSETS:
		good = p.len == sequences
	case C.ROPE_POSITIONS_IDS_T:
		good = p.len == tokens
	case C.ROPE_POSITIONS_IDS_BT:
		good = fills(p.len, batch, tokens, 1)
	case C.ROPE_POSITIONS_IDS_ABT, C.ROPE_POSITIONS_IDS_BTA:
		good = fills(p.len, batch, tokens, c.info.Axes)
	default:
		call.positions.stride_axis = C.int64_t(p.strideAxis)
		call.positions.stride_batch = C.int64_t(p.strideBatch)
		call.positions.stride_token = C.int64_t(p.strideToken)
		good = batch == 0 || tokens == 0 || reaches(p.len, 1, [3]int{c.info.Axes, batch, tokens},
			[3]int{p.strideAxis, p.strideBatch, p.strideToken})
	}
	if !good {
		return invalid("positions have %d entries, which does not fit batch %d, tokens %d, axes %d "+
			"and %d sequences", p.len, batch, tokens, c.info.Axes, sequences)
	}
	return nil
}

// check fills the tensor after checking that every element of it lies inside the slice.
func (t *Tensor[T]) check(name string, raw *C.ropego_tensor, c *Context, step *Step,
	dtype DType) (*C.uint8_t, error) {
	if t.Data == nil && t.Layout == 0 && t.Heads == 0 {
		return nil, nil // no tensor
	}
	dim := c.info.HeadDim
	if t.Span {
		dim = c.info.RotaryDim
		raw.head_dim = C.int32_t(dim)
	}
	batch, tokens := max(0, step.Batch), max(0, step.Tokens)
	good := t.Heads >= 0 && t.Heads <= math.MaxInt32
	if t.Layout == LayoutStrided {
		raw.stride_batch = C.int64_t(t.Strides.Batch)
		raw.stride_token = C.int64_t(t.Strides.Token)
		raw.stride_head = C.int64_t(t.Strides.Head)
		good = good && (batch == 0 || tokens == 0 || t.Heads == 0 ||
			reaches(len(t.Data), dim, [3]int{batch, tokens, t.Heads},
				[3]int{t.Strides.Batch, t.Strides.Token, t.Strides.Head}))
	} else {
		// A head count that is off by one would still fit, so contiguous slices must be exact.
		rows := tokens
		if batch != 1 {
			high, low := bits.Mul64(uint64(batch), uint64(tokens))
			if good = good && high == 0 && low <= math.MaxInt64; good {
				rows = int(low)
			}
		}
		good = good && fills(len(t.Data), rows, t.Heads, dim)
		// Strides without LayoutStrided are a mistake that the library reports.
		raw.stride_batch = C.int64_t(t.Strides.Batch)
		raw.stride_token = C.int64_t(t.Strides.Token)
		raw.stride_head = C.int64_t(t.Strides.Head)
	}
	if !good {
		return nil, invalid("%s with batch %d, tokens %d, heads %d, channels %d, layout %d and strides "+
			"%+v does not fit its slice of %d elements", name, batch, tokens, t.Heads, dim, t.Layout,
			t.Strides, len(t.Data))
	}
	raw.dtype = C.int32_t(dtype)
	raw.layout = C.int32_t(t.Layout)
	raw.heads = C.int32_t(t.Heads)
	data := unsafe.Pointer(unsafe.SliceData(t.Data))
	if data == nil {
		data = unsafe.Pointer(&nothing)
	}
	return (*C.uint8_t)(data), nil
}

// fills tells whether a*b*c is n, without overflow. None is negative, or it does not.
func fills(n, a, b, c int) bool {
	if (a|b|c) < 1<<20 && a|b|c >= 0 {
		return a*b*c == n
	}
	if a|b|c < 0 {
		return false
	}
	high, low := bits.Mul64(uint64(a), uint64(b))
	high2, low2 := bits.Mul64(low, uint64(c))
	return high == 0 && high2 == 0 && low2 == uint64(n)
}

// reaches tells whether elements up to sum((counts - 1) * strides) + width lie inside n.
func reaches(n, width int, counts, strides [3]int) bool {
	total := uint64(width)
	for i := range counts {
		if strides[i] < 0 {
			return false
		}
		high, low := bits.Mul64(uint64(counts[i]-1), uint64(strides[i]))
		sum, carry := bits.Add64(total, low, 0)
		if high != 0 || carry != 0 {
			return false
		}
		total = sum
	}
	return total <= uint64(n)
}

// CosSin is rows of cos and sin, one per token: to rotate by, or for FillCosSin to write. They hold
// the attention factor.
type CosSin struct {
	format    int32
	dtype     DType
	data, sin unsafe.Pointer
	len       int // of the shorter slice
	// Stride is the distance from one row to the next, in elements; 0: rows follow each other.
	Stride int
	// Shared: there are rows for one batch row, and all use them. To read only.
	Shared bool
}

// Packed is c0 c1 .. s0 s1 ..: cos_sin_cache of vLLM, SGLang, FlashInfer.
func Packed[T Element](rows []T) *CosSin { return rowsOf(C.ROPE_COS_SIN_PACKED, rows, nil) }

// PackedSinFirst is s0 s1 .. c0 c1 ..: GPT-J.
func PackedSinFirst[T Element](rows []T) *CosSin {
	return rowsOf(C.ROPE_COS_SIN_PACKED_SIN_FIRST, rows, nil)
}

// Split has one value per pair in each slice: flash-attn, ONNX.
func Split[T Element](cos, sin []T) *CosSin { return rowsOf(C.ROPE_COS_SIN_SPLIT, cos, sin) }

// FullHalves has one value per channel, c0 c1 .. c0 c1 ..: transformers.
func FullHalves[T Element](cos, sin []T) *CosSin {
	return rowsOf(C.ROPE_COS_SIN_FULL_HALVES, cos, sin)
}

// FullInterleaved has one value per channel, c0 c0 c1 c1 ..: Cohere.
func FullInterleaved[T Element](cos, sin []T) *CosSin {
	return rowsOf(C.ROPE_COS_SIN_FULL_INTERLEAVED, cos, sin)
}

// Complex is c0 s0 c1 s1 ..: freqs_cis.
func Complex[T Element](rows []T) *CosSin { return rowsOf(C.ROPE_COS_SIN_COMPLEX, rows, nil) }

// Sinusoidal is s0 c0 s1 c1 ..: the absolute encoding of 2017. To write only.
func Sinusoidal[T Element](rows []T) *CosSin { return rowsOf(C.ROPE_COS_SIN_SINUSOIDAL, rows, nil) }

// Angles has one angle per pair. To write only.
func Angles(rows []float32) *CosSin { return rowsOf(C.ROPE_COS_SIN_ANGLES, rows, nil) }

// AnglesFull has one angle per channel, a0 a1 .. a0 a1 ... To write only.
func AnglesFull(rows []float32) *CosSin { return rowsOf(C.ROPE_COS_SIN_ANGLES_FULL, rows, nil) }

func rowsOf[T Element](format int32, data, sin []T) *CosSin {
	n := len(data)
	if format >= C.ROPE_COS_SIN_SPLIT && format <= C.ROPE_COS_SIN_FULL_INTERLEAVED {
		n = min(n, len(sin))
	}
	return &CosSin{format: format, dtype: dtypeOf[T](), data: unsafe.Pointer(unsafe.SliceData(data)),
		sin: unsafe.Pointer(unsafe.SliceData(sin)), len: n}
}

func (r *CosSin) check(raw *C.ropego_rows, c *Context, step *Step, write bool) error {
	width := 2 * c.info.Pairs
	if r.format == C.ROPE_COS_SIN_SPLIT || r.format == C.ROPE_COS_SIN_ANGLES {
		width = c.info.Pairs
	}
	stride := r.Stride
	if stride == 0 {
		stride = width
	}
	batch, tokens := max(0, step.Batch), max(0, step.Tokens)
	if r.Shared && !write {
		batch = min(batch, 1)
	}
	high, rows := bits.Mul64(uint64(batch), uint64(tokens))
	good := high == 0 && rows <= math.MaxInt64
	if good && rows > 0 {
		good = reaches(r.len, width, [3]int{int(rows), 1, 1}, [3]int{stride, 0, 0})
		if write && r.Stride == 0 {
			good = good && fills(r.len, int(rows), width, 1)
		}
	}
	if !good {
		return invalid("%d elements of cos/sin rows do not hold %d * %d rows of width %d and stride %d",
			r.len, batch, tokens, width, stride)
	}
	*raw = C.ropego_rows{
		format:       C.int32_t(r.format),
		dtype:        C.int32_t(r.dtype),
		pairs:        C.int32_t(c.info.Pairs),
		batch:        C.int64_t(batch),
		stride_token: C.int64_t(r.Stride),
	}
	return nil
}

// FillCosSin writes the rows of cos and sin of the step's positions: to fill an engine's cache in its
// own layout, or once per step for all layers (Step.CosSin).
func FillCosSin(c *Context, step Step, out *CosSin) error {
	if step.CosSin != nil {
		return invalid("FillCosSin needs positions, and not rows")
	}
	call := new(C.ropego_call)
	if err := c.begin(call, &step); err != nil {
		return err
	}
	if err := out.check(&call.rows, c, &step, true); err != nil {
		return err
	}
	raw := C.ropego_cos_sin_fill(c.ptr, call, (*C.uint8_t)(step.Positions.ids),
		(*C.int32_t)(unsafe.SliceData(step.CuSeqlens)), (*C.int32_t)(unsafe.SliceData(step.FreqSets)),
		(*C.uint8_t)(out.data), (*C.uint8_t)(out.sin))
	runtime.KeepAlive(c)
	return check(raw)
}
