package rope

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// Float16 is an IEEE half, as bits. Float16FromFloat32 and Float32 convert.
type Float16 uint16

// BFloat16 is the upper half of a float32, as bits. BFloat16FromFloat32 and Float32 convert.
type BFloat16 uint16

// Element is a type of the elements of tensors.
type Element interface {
	~float32 | Float16 | BFloat16
}

// F8E4M3 is a code of DTypeF8E4M3, as bits.
type F8E4M3 uint8

// F8E5M2 is a code of DTypeF8E5M2, as bits.
type F8E5M2 uint8

// Q80 is a block of DTypeQ80, ggml's Q8_0: 32 adjacent channels of a head, each Codes[i] * D. Slices of blocks have an
// element for each 32 channels; strides and channels of heads count channels, as everywhere, and are multiples of 32.
type Q80 struct {
	D     Float16
	Codes [32]int8 // -127 to 127
}

// OutputElement is a type of the elements of an output of a [Call], or of a cache: an Element; a code of 8 bits,
// which stands for itself times a [Scale]; or a block, which has its own.
type OutputElement interface {
	Element | F8E4M3 | F8E5M2 | int8 | Q80
}

// channels is how many an element of a slice holds.
func (value DType) channels() int {
	if value == DTypeQ80 {
		return len(Q80{}.Codes)
	}
	return 1
}

// dtypeOf is the library's number of a [OutputElement]; of any other type 0, which it refuses by name.
func dtypeOf[T any]() DType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return DTypeF32
	case Float16:
		return DTypeF16
	case BFloat16:
		return DTypeBF16
	case F8E4M3:
		return DTypeF8E4M3
	case F8E5M2:
		return DTypeF8E5M2
	case int8:
		return DTypeI8
	case Q80:
		return DTypeQ80
	}
	if reflect.TypeFor[T]().Kind() == reflect.Float32 { // a type of the caller's
		return DTypeF32
	}
	return 0
}

// Layout is the order of the dimensions, outermost first. Channels of a head are always adjacent.
type Layout int32

// Strides are distances in elements; of Q80 in channels.
type Strides struct {
	Batch, Token int
	Head         int // 0 in an input repeats one head for all
}

// Tensor is q, k or an output, or the memory of a KVCache: a slice, its layout and its heads. The zero
// value is no tensor, and so is an empty slice with 0 heads, which as the output of a tensor is an error.
// A contiguous layout must fill Data exactly.
type Tensor[T OutputElement] struct {
	Data    []T
	Layout  Layout
	Heads   int
	Strides Strides // LayoutStrided only
	// Span: each "head" is the rotated span alone, as DeepSeek's k_pe or a slice of a wider row.
	Span bool
}

// BSHD is a contiguous [batch, tokens, heads, channels]; with batch 1 also [tokens, heads, channels].
func BSHD[T OutputElement](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutBSHD, Heads: heads}
}

// BHSD is a contiguous [batch, heads, tokens, channels].
func BHSD[T OutputElement](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutBHSD, Heads: heads}
}

// SBHD is a contiguous [tokens, batch, heads, channels].
func SBHD[T OutputElement](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutSBHD, Heads: heads}
}

// Strided has strides of its own, from the first element of data.
func Strided[T OutputElement](data []T, heads int, strides Strides) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutStrided, Heads: heads, Strides: strides}
}

// empty tells whether there is no tensor: the zero Tensor, and a slice of no elements with no heads.
func (t *Tensor[T]) empty() bool { return len(t.Data) == 0 && t.Heads == 0 }

// zero tells whether it is the zero Tensor, which as an output means in place.
func (t *Tensor[T]) zero() bool {
	return t.Data == nil && t.Heads == 0 && t.Layout == 0 && t.Strides == Strides{} && !t.Span
}

// lacksHeads tells whether memory of a cache, into which a tensor goes, was described and is empty.
func (t *Tensor[T]) lacksHeads() bool { return t.empty() && !t.zero() }

// given tells which of an input and its output, which may be nil, are tensors of the call.
func given[T Element](in, out *Tensor[T]) (hasIn, hasOut bool) {
	// An output of no elements is no request to rotate in place.
	return !in.empty(), out != nil && !out.zero() && !(in.empty() && out.empty())
}

// check fills the C tensor after checking that every element of it lies inside the slice.
func (t *Tensor[T]) check(function, name string, raw *C.ropego_tensor, c *contextState,
	step *Step) (*C.uint8_t, error) {
	return t.checkWide(function, name, raw, t.channels(c), step)
}

// checkWide is check for heads of dim channels.
func (t *Tensor[T]) checkWide(function, name string, raw *C.ropego_tensor, dim int, step *Step) (*C.uint8_t, error) {
	n, good := t.elements(dim, step)
	if !good || !t.Layout.holds(n, len(t.Data)) {
		return nil, t.Layout.misfit(function, t.words(name, dim, step, false), n, good, len(t.Data), dtypeOf[T]())
	}
	t.fill(raw, dim)
	if step.Batch <= 0 {
		return nil, nil // so C is told that it was not forgotten
	}
	data := unsafe.Pointer(unsafe.SliceData(t.Data))
	if data == nil {
		data = unsafe.Pointer(&nothing)
	}
	return (*C.uint8_t)(data), nil
}

// channels is how many a "head" has.
func (t *Tensor[T]) channels(c *contextState) int {
	if t.Span {
		return c.info.RotaryDim
	}
	return c.info.HeadDim
}

// fill writes all of the C tensor but its address.
func (t *Tensor[T]) fill(raw *C.ropego_tensor, dim int) {
	if t.Span {
		raw.head_dim = C.int32_t(dim)
	}
	// Strides without LayoutStrided are a mistake that the library reports.
	raw.stride_batch = C.int64_t(t.Strides.Batch)
	raw.stride_token = C.int64_t(t.Strides.Token)
	raw.stride_head = C.int64_t(t.Strides.Head)
	raw.dtype = C.int32_t(dtypeOf[T]())
	raw.layout = C.int32_t(t.Layout)
	raw.heads = C.int32_t(t.Heads)
}

// elements is how many channels the slice needs; false if there is no such slice.
func (t *Tensor[T]) elements(dim int, step *Step) (uint64, bool) {
	batch, tokens := max(0, step.Batch), max(0, step.Tokens)
	if t.Heads < 0 || t.Heads > math.MaxInt32 {
		return 0, false
	}
	if t.Layout != LayoutStrided {
		return extent.Volume(batch, tokens, t.Heads, dim)
	}
	if batch == 0 || tokens == 0 || t.Heads == 0 {
		return 0, true
	}
	return extent.End(dim, [3]uint64{uint64(batch), uint64(tokens), uint64(t.Heads)},
		[3]int{t.Strides.Batch, t.Strides.Token, t.Strides.Head})
}

// holds tells whether a slice of so many channels holds those of a tensor. A head count that is off by
// one would still fit, so contiguous slices must be exact.
func (l Layout) holds(channels uint64, length int) bool {
	if l == LayoutStrided {
		return channels <= uint64(length)
	}
	return channels == uint64(length)
}

// misfit is the error of a tensor, in words, whose slice has another length than that of so many channels; not
// good: there is no such slice.
func (l Layout) misfit(function, words string, channels uint64, good bool, length int, dtype DType) error {
	unit, rule, need := "elements", ", which it must fill", "more than there can be"
	each := uint64(dtype.channels())
	if each != 1 {
		unit = fmt.Sprintf("blocks of %d channels", each)
	}
	if good {
		need = fmt.Sprint((channels + each - 1) / each) // of a slice, or a few more
	}
	if l == LayoutStrided {
		rule = ""
	}
	return invalid(function, "%s does not fit its slice of %d %s%s: it needs %s", words, length, unit, rule, need)
}

// count is a number of things in words.
func count[N int | uint64](n N, one, more string) string {
	if n == 1 {
		more = one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// words describe the tensor of this name in an error, or the pages and slots of a cache.
func (t *Tensor[T]) words(name string, dim int, sizes *Step, pages bool) string {
	format := "%s with batch %d, tokens %d, heads %d, channels %d"
	if pages {
		format = "%s with %d pages of %d slots, heads %d, channels %d"
	}
	text := fmt.Sprintf(format, name, sizes.Batch, sizes.Tokens, t.Heads, dim)
	if t.Layout == LayoutStrided {
		return text + fmt.Sprintf(", %v and strides %+v", t.Layout, t.Strides)
	}
	return text + fmt.Sprintf(" and %v", t.Layout)
}
