package rope_test

// Parts of the fuzzer's Calls: tensors of any type with their scales, and what layers of prepared calls bring.

import (
	"unsafe"

	rope "github.com/librope/librope/bindings/go"
)

// scales are those of codes: none, one for all, or an array of floats or exponents.
type scales struct {
	of        *rope.Scale
	groups    int // of a head
	floats    operand[float32]
	exponents operand[int8]
}

// newScales are scales of heads with so many channels, in tensors of this layout; batch rows and tokens are those of z,
// or pages and slots.
func newScales(s *source, z sizes, layout rope.Layout, heads, dim int) scales {
	x := scales{of: &rope.Scale{RoundFirst: s.oneIn(4)}, groups: 1}
	if s.oneIn(20) {
		x.of.Group = s.number(16)
	}
	if s.oneIn(3) {
		x.of.Value = 0.02
		if s.oneIn(8) {
			x.of.Value = float32(s.float())
		}
		return x
	}
	if x.of.Group == 0 {
		x.of.Group = pick(s, 0, dim, (dim+1)/2)
	}
	if group := x.of.Group; group > 0 && dim%group == 0 {
		x.groups = dim / group
	}
	strides := rope.Strides{Batch: z.tokens * heads * x.groups, Token: heads * x.groups, Head: x.groups}
	x.floats.tensor = rope.Tensor[float32]{Layout: layout, Heads: heads, Strides: strides}
	n := z.batch * z.tokens * heads * x.groups
	if s.oneIn(3) {
		n = x.floats.stride(s, z, heads, x.groups)
		strides = x.floats.tensor.Strides
		x.floats.tensor.Layout, x.of.Strides = rope.LayoutStrided, &strides
	}
	n = s.length(30, n)
	x.exponents.tensor = rope.Tensor[int8]{Layout: x.floats.tensor.Layout, Heads: heads, Strides: strides}
	x.floats.region, x.exponents.region = fence(s, n, element[float32](s)), fence(s, n, element[int8](s))
	x.of.Computed = s.oneIn(2)
	if s.oneIn(3) {
		x.of.E8M0 = bytesOf(x.exponents.region.inside)
		x.of.PowerOfTwo = x.of.Computed != s.oneIn(20)
		return x
	}
	x.of.Data = x.floats.region.inside
	if x.of.Computed {
		x.of.PowerOfTwo = s.oneIn(3)
		x.of.MinScale = pick(s, 0, 0.05, s.float())
	}
	return x
}

// bytesOf is the same memory as exponents.
func bytesOf(x []int8) []uint8 {
	return unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// written calls one of two functions with the array that a call writes, if there is one.
func (x *scales) written(floats func(*operand[float32]), exponents func(*operand[int8])) {
	switch {
	case x.of == nil || !x.of.Computed:
	case x.of.E8M0 != nil:
		exponents(&x.exponents)
	case x.of.Data != nil:
		floats(&x.floats)
	}
}

func (x *scales) allow(z sizes) {
	z = z.plain(x.groups)
	x.written(func(o *operand[float32]) { o.allow(z, true) }, func(o *operand[int8]) { o.allow(z, true) })
}

func (x *scales) allowSlots(slots []int, pages, pageSize int) {
	x.written(func(o *operand[float32]) { o.allowSlots(slots, x.groups, pages, pageSize) },
		func(o *operand[int8]) { o.allowSlots(slots, x.groups, pages, pageSize) })
}

// array is that of a layer.
func (x *scales) array(s *source) rope.Array {
	switch {
	case x.of != nil && x.of.E8M0 != nil:
		return arrayOf(s, x.of.E8M0)
	case x.of != nil && x.of.Data != nil:
		return arrayOf(s, x.of.Data)
	}
	return rope.Array{}
}

// arrayOf is that of a slice, or now and then a part of it, none, or one of another type.
func arrayOf[T rope.OutputElement | uint8](s *source, slice []T) rope.Array {
	switch s.below(400) {
	case 0:
		return rope.ArrayOf(slice[:s.below(len(slice)+1)])
	case 1:
		return rope.Array{}
	case 2:
		return rope.ArrayOf(make([]float32, len(slice)))
	}
	return rope.ArrayOf(slice)
}

// part is a tensor of a Call, of any type.
type part interface {
	whole() rope.AnyTensor            // for Apply
	described(*source) rope.AnyTensor // for PrepareCall
	arrays(*source) (data, scales rope.Array)
	memory() []guarded
}

// coded is an operand as a part of a Call.
type coded[T rope.OutputElement] struct {
	operand[T]
	headDim int // 0: the context's
	scales  scales
}

// withScales gives an operand the scales that its type needs, mostly.
func withScales[T rope.OutputElement](s *source, z sizes, o operand[T]) coded[T] {
	x := coded[T]{operand: o}
	needed := false
	switch any(o.tensor.Data).(type) {
	case []rope.F8E4M3, []rope.F8E5M2, []int8:
		needed = true
	}
	if !o.absent() && needed != s.oneIn(200) {
		x.scales = newScales(s, z, o.tensor.Layout, o.heads(), z.channels(o.tensor.Span))
	}
	return x
}

func (x *coded[T]) whole() rope.AnyTensor {
	return x.tensor.Any().WithHeadDim(x.headDim).WithScale(x.scales.of)
}

func (x *coded[T]) described(s *source) rope.AnyTensor {
	t := x.shape(s).Any().WithHeadDim(x.headDim)
	if x.scales.of == nil || s.oneIn(150) {
		return t.WithScale(x.scales.of)
	}
	empty := *x.scales.of
	empty.Data, empty.E8M0 = empty.Data[:0:0], empty.E8M0[:0:0]
	return t.WithScale(&empty)
}

func (x *coded[T]) arrays(s *source) (data, scales rope.Array) {
	return arrayOf(s, x.tensor.Data), x.scales.array(s)
}

func (x *coded[T]) memory() []guarded {
	memory := []guarded{x.region}
	if x.scales.floats.region != nil {
		memory = append(memory, x.scales.floats.region, x.scales.exponents.region)
	}
	return memory
}
