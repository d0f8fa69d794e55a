package rope

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// CosSin is rows of cos and sin, one per token, or one per token and head: to rotate by, or for FillCosSin to write. They hold
// the attention factor.
type CosSin struct {
	format    int32
	dtype     DType
	element   uint64 // bytes of one
	data, sin unsafe.Pointer
	len       int  // of the shorter slice
	uneven    bool // cos and sin are not of one length
	// Stride is the distance from the rows of one token to those of the next, in elements; 0: rows
	// follow each other.
	Stride int
	// Heads have rows of their own, [batch, tokens, heads, row]; 0: the heads of a token share one. The
	// heads of q and of k must be a multiple: each row serves as many adjacent heads. Rows that are
	// written have those of Config.FreqHeads.
	Heads int
	// HeadStride is the distance from one head's row to the next; 0: they follow each other. Otherwise
	// Stride is required, too, and a batch row is the larger one of tokens and heads times their
	// strides: [batch, heads, tokens, row] has the width of a row and tokens times this width.
	HeadStride int
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
	n, uneven := len(data), false
	if formatOf(format).slices == 2 {
		n, uneven = min(n, len(sin)), n != len(sin)
	}
	var zero T
	return &CosSin{format: format, dtype: dtypeOf[T](), element: uint64(unsafe.Sizeof(zero)),
		data: unsafe.Pointer(unsafe.SliceData(data)), sin: unsafe.Pointer(unsafe.SliceData(sin)), len: n, uneven: uneven}
}

// rowFormat is what the library tells of a format: zeros of one that it does not know.
type rowFormat struct{ slices, perPair int }

// rowFormats are asked for once: a call crosses into C once.
var rowFormats = func() []rowFormat {
	formats := make([]rowFormat, 1) // 0 is none
	for f := C.rope_cos_sin_format(1); C.rope_cos_sin_tensors(f) != 0; f++ {
		formats = append(formats, rowFormat{int(C.rope_cos_sin_tensors(f)), int(C.rope_cos_sin_width(f, 1))})
	}
	return formats
}()

func formatOf(number int32) rowFormat {
	if number < 0 || int(number) >= len(rowFormats) {
		return rowFormat{}
	}
	return rowFormats[number]
}

// width is how many elements of a row are in each of its slices.
func (r *CosSin) width(pairs int) int { return formatOf(r.format).perPair * pairs }

// strides are those of batch rows, tokens and heads; false if one is beyond an int.
func (r *CosSin) strides(width, tokens int) ([3]int, bool) {
	token, head, heads := r.Stride, r.HeadStride, max(1, r.Heads)
	if token == 0 {
		all, ok := extent.Product(width, heads)
		if !ok || all > math.MaxInt {
			return [3]int{}, false
		}
		token = int(all)
	}
	batch, ok := extent.Product(tokens, max(0, token))
	if head == 0 {
		head = width
	} else {
		ofHeads, fits := extent.Product(heads, max(0, head))
		batch, ok = max(batch, ofHeads), ok && fits
	}
	return [3]int{int(batch), token, head}, ok && batch <= math.MaxInt
}

func (r *CosSin) check(function string, raw *C.ropego_rows, c *contextState, step *Step,
	write bool) error {
	if r == nil || r.format == 0 {
		return invalid(function, "rows of cos and sin must be made by Packed, Split or another of its kind")
	}
	width := r.width(c.info.Pairs)
	if formatOf(r.format).slices == 0 {
		return &Error{ErrUnsupported, fmt.Sprintf("rope.%s: the loaded librope does not know rows of format %d",
			function, r.format)}
	}
	if r.Heads < 0 || r.Heads > math.MaxInt32 {
		return invalid(function, "rows of cos and sin for %d heads", r.Heads)
	}
	if write && r.Shared {
		return invalid(function, "Shared (true) is of rows that are read: each batch row has its own here")
	}
	batch, tokens := max(0, step.Batch), max(0, step.Tokens)
	if r.Shared {
		batch = min(batch, 1)
	}
	rows, good := extent.Product(batch, tokens)
	strides, fit := r.strides(width, tokens)
	if good = good && fit; good && rows > 0 {
		counts := [3]uint64{uint64(batch), uint64(tokens), uint64(max(1, r.Heads))}
		good = extent.Reaches(r.len, width, counts, strides)
		if write && r.Stride == 0 {
			product, fits := extent.Product(batch, tokens, max(1, r.Heads), width)
			good = fits && !r.uneven && product == uint64(r.len)
		}
	}
	if !good {
		heads := ""
		if r.Heads != 0 {
			heads = fmt.Sprintf(", for each of %d heads", r.Heads)
		}
		return invalid(function, "rows of cos and sin (%d elements) must hold batch %d * tokens %d rows of "+
			"width %d and stride %d%s", r.len, step.Batch, step.Tokens, width, strides[1], heads)
	}
	*raw = C.ropego_rows{
		format:       C.int32_t(r.format),
		dtype:        C.int32_t(r.dtype),
		pairs:        C.int32_t(c.info.Pairs),
		batch:        C.int64_t(batch),
		stride_token: C.int64_t(r.Stride),
		heads:        C.int32_t(r.Heads),
		stride_head:  C.int64_t(r.HeadStride),
	}
	return nil
}
