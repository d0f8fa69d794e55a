package rope_test

// Tensors of the fuzzer's calls: their memory, how they lie in it, and which elements a call may write.

import (
	rope "github.com/librope/librope/bindings/go"
)

// operand is a tensor of a call and where its memory lies.
type operand[T rope.OutputElement] struct {
	tensor rope.Tensor[T]
	region *region[T]
	offset int // of the tensor's data in the region
}

// element draws elements: finite floats, codes and blocks.
func element[T rope.OutputElement](s *source) func() T {
	var x T
	draw := func() {}
	switch at := any(&x).(type) {
	case *float32:
		draw = func() { *at = s.r.Float32()*2 - 1 }
	case *rope.Float16:
		draw = func() { *at = rope.Float16(s.r.Uint32() >> 18) }
	case *rope.BFloat16:
		draw = func() { *at = rope.BFloat16(s.r.Uint32() >> 18) }
	case *int8:
		draw = func() { *at = int8(s.r.Uint32() >> 24) }
	case *rope.F8E4M3:
		draw = func() { *at = rope.F8E4M3(s.r.Uint32() >> 26) }
	case *rope.F8E5M2:
		draw = func() { *at = rope.F8E5M2(s.r.Uint32() >> 26) }
	case *rope.Q80:
		draw = func() { *at = rope.Q80{D: rope.Float16(s.r.Uint32() >> 18), Codes: [32]int8{int8(s.r.Uint32() >> 25)}} }
	}
	return func() T {
		draw()
		return x
	}
}

// channelsOf is how many channels an element holds.
func channelsOf[T rope.OutputElement]() int {
	if _, blocks := any(*new(T)).(rope.Q80); blocks {
		return 32
	}
	return 1
}

// noOperand is a tensor that is not there, with memory of none.
func noOperand[T rope.OutputElement](s *source) operand[T] {
	return operand[T]{region: fence(s, 0, element[T](s))}
}

// absent tells whether the call has no such tensor.
func (o *operand[T]) absent() bool { return o.tensor.Data == nil && o.tensor.Layout == 0 }

func newOperand[T rope.OutputElement](s *source, z sizes) operand[T] {
	if s.oneIn(8) {
		o := noOperand[T](s)
		if s.oneIn(4) {
			o.tensor.Data, o.tensor.Layout = o.region.inside, rope.LayoutBSHD
		}
		return o
	}
	return operandOf[T](s, z, max(1, z.info.FreqHeads)*(1+s.below(4)), s.oneIn(5))
}

// operandOf is a tensor of so many heads.
func operandOf[T rope.OutputElement](s *source, z sizes, heads int, span bool) operand[T] {
	o, dim := operand[T]{}, z.channels(span)
	o.tensor.Span, o.tensor.Layout = span, rope.Layout(1+s.below(4))
	n := z.batch * z.tokens * heads * dim
	if o.tensor.Layout == rope.LayoutStrided {
		n = o.stride(s, z, heads, dim)
	}
	o.region = fence(s, s.length(80, (n+channelsOf[T]()-1)/channelsOf[T](), dim, -dim), element[T](s))
	o.tensor.Data, o.tensor.Heads = o.region.inside, heads
	if o.tensor.Layout != rope.LayoutStrided || o.tensor.Strides.Head != 0 { // else it would be work for minutes
		o.tensor.Heads = s.number(heads)
	}
	if s.oneIn(200) {
		o.tensor.Layout = rope.Layout(s.hostile())
	}
	return o
}

// stride sets strides with gaps, dimensions in any order, and returns how many channels they need.
func (o *operand[T]) stride(s *source, z sizes, heads, dim int) int {
	counts := [3]int{z.batch, z.tokens, heads}
	var strides [3]int
	reach := dim
	order := pick(s, [3]int{2, 1, 0}, [3]int{1, 2, 0}, [3]int{2, 0, 1}, [3]int{0, 1, 2})
	for _, d := range order {
		strides[d] = reach + pick(s, 0, 0, 1, 8)*channelsOf[T]()
		reach += (max(1, counts[d]) - 1) * strides[d]
	}
	if s.oneIn(12) {
		strides[2] = 0 // one head for all
	}
	if s.oneIn(40) {
		strides[s.below(3)] = s.hostile()
	}
	o.tensor.Strides = rope.Strides{Batch: strides[0], Token: strides[1], Head: strides[2]}
	return reach
}

// heads is how many the tensor has: a hostile number is refused, and memory for so many is not made.
func (o *operand[T]) heads() int { return max(0, min(64, o.tensor.Heads)) }

// allow marks what a call on this operand may write: the rotated span, or whole heads.
func (o *operand[T]) allow(z sizes, whole bool) {
	t := &o.tensor
	if t.Heads < 0 || t.Heads > len(o.region.mask) {
		return // it must be refused, or nothing is to do
	}
	first, width, dim := z.info.RotaryOffset, z.info.RotaryDim, z.channels(t.Span)
	if t.Span {
		first = 0
	} else if whole {
		first, width = 0, dim
	}
	strides := [3]int{t.Strides.Batch, t.Strides.Token, t.Strides.Head}
	switch t.Layout {
	case rope.LayoutBSHD:
		strides = [3]int{z.tokens * t.Heads * dim, t.Heads * dim, dim}
	case rope.LayoutBHSD:
		strides = [3]int{t.Heads * z.tokens * dim, dim, z.tokens * dim}
	case rope.LayoutSBHD:
		strides = [3]int{t.Heads * dim, z.batch * t.Heads * dim, dim}
	}
	for b := range z.batch {
		for token := range z.tokens {
			for h := range t.Heads {
				o.mark(o.offset+b*strides[0]+token*strides[1]+h*strides[2]+first, width)
			}
		}
	}
}

// mark lets a call write these channels. Where they lie outside of the slice, it must be refused.
func (o *operand[T]) mark(at, channels int) {
	each := channelsOf[T]()
	if at >= 0 && at <= len(o.region.mask)*each-channels {
		o.region.allow(at/each, (at%each+channels+each-1)/each)
	}
}

// packed makes k a part of q's buffer, if they have one type: disjoint in a fused projection, or not.
func packed[Q, K rope.Element](s *source, q operand[Q], k *operand[K]) {
	shared, same := any(q.region).(*region[K])
	if !same || q.tensor.Layout != rope.LayoutStrided || !s.oneIn(2) {
		return
	}
	heads := max(1, min(q.tensor.Heads/2, 1<<20)) // products of hostile numbers wrap
	k.offset = min(len(shared.inside), heads*max(0, min(4096, q.tensor.Strides.Head)))
	k.region = shared
	k.tensor = rope.Strided(shared.inside[k.offset:], heads, q.tensor.Strides)
}

// shape is the tensor without its slice, which now and then stays.
func (o *operand[T]) shape(s *source) rope.Tensor[T] {
	t := o.tensor
	if !s.oneIn(150) {
		t.Data = nil
	}
	return t
}

// slice is that of the tensor, or now and then a part of it, or none.
func (o *operand[T]) slice(s *source) []T {
	data := o.tensor.Data
	if s.oneIn(40) {
		return data[:s.below(len(data)+1)]
	}
	if s.oneIn(80) {
		return nil
	}
	return data
}

// outputOf is one for an input: the input itself, none, or memory of its own, in which heads may repeat.
func outputOf[Out, In rope.OutputElement](s *source, z sizes, step *rope.Step, in operand[In]) operand[Out] {
	if in.absent() && !s.oneIn(10) || s.oneIn(6) {
		return noOperand[Out](s)
	}
	if same, is := any(in).(operand[Out]); is && s.oneIn(6) {
		return same
	}
	heads := in.heads()
	if s.oneIn(4) {
		times := 2 + s.below(2)
		if step.Operation != rope.OperationBackward {
			heads *= times
		} else if heads%times == 0 {
			heads /= times
		}
	}
	if s.oneIn(30) {
		heads = 1 + s.below(4)
	}
	return operandOf[Out](s, z, heads, in.tensor.Span != s.oneIn(10))
}

// allowOutput marks what a call writes for an input: its output, or where there is none the input.
func allowOutput[In, Out rope.OutputElement](z sizes, in operand[In], out operand[Out], normed bool) {
	if out.absent() {
		in.allow(z, normed)
		return
	}
	inPlace := any(out.region) == any(in.region)
	out.allow(z, !in.tensor.Span && (normed || !inPlace && !out.tensor.Span))
}

// repeats tells whether the heads of an output are others than those of its input.
func repeats[In, Out rope.OutputElement](in operand[In], out operand[Out]) bool {
	return !in.absent() && !out.absent() && in.tensor.Heads != out.tensor.Heads
}
