package rope_test

// The calls of the fuzzer: tensors, steps and rows from a source, and which elements each may write.

import (
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

// operand is a tensor of a call and where its memory lies.
type operand[T rope.Element] struct {
	tensor rope.Tensor[T]
	region *region[T]
	offset int // of the tensor's data in the region
}

func element[T rope.Element](s *source) func() T {
	var zero T
	if _, is := any(zero).(float32); is {
		return func() T { return T(s.r.Float32()*2 - 1) }
	}
	return func() T { return T(s.r.Uint32() >> 18) } // halves below 1, and bfloat16 below 2^-32
}

// sizes are those of one call; real ones, though the step may be wrong about them.
type sizes struct {
	info          rope.Info
	batch, tokens int
	normed        bool // heads may be written whole
}

func newOperand[T rope.Element](s *source, z sizes) operand[T] {
	var o operand[T]
	heads := 1 + s.below(4)
	if s.oneIn(8) {
		o.region = fence(s, 0, element[T](s))
		if s.oneIn(2) {
			o.tensor.Data, o.tensor.Layout = o.region.inside, rope.LayoutBSHD
		}
		return o
	}
	dim := z.info.HeadDim
	if s.oneIn(5) {
		o.tensor.Span, dim = true, z.info.RotaryDim
	}
	n := z.batch * z.tokens * heads * dim
	o.tensor.Layout = rope.Layout(1 + s.below(4))
	if o.tensor.Layout == rope.LayoutStrided {
		n = o.stride(s, z, heads, dim)
	}
	if s.oneIn(25) {
		n = max(0, n+pick(s, -1, 1, -dim, dim, -n))
	}
	o.region = fence(s, n, element[T](s))
	o.tensor.Data, o.tensor.Heads = o.region.inside, s.number(heads)
	if s.oneIn(50) {
		o.tensor.Layout = rope.Layout(s.hostile())
	}
	return o
}

// stride sets strides with gaps, dimensions in any order, and returns how many elements they need.
func (o *operand[T]) stride(s *source, z sizes, heads, dim int) int {
	counts := [3]int{z.batch, z.tokens, heads}
	var strides [3]int
	reach := dim
	order := pick(s, [3]int{2, 1, 0}, [3]int{1, 2, 0}, [3]int{2, 0, 1}, [3]int{0, 1, 2})
	for _, d := range order {
		strides[d] = reach + pick(s, 0, 0, 1, 8)
		reach += (max(1, counts[d]) - 1) * strides[d]
	}
	if s.oneIn(6) {
		strides[2] = 0 // one head for all
	}
	if s.oneIn(25) {
		strides[s.below(3)] = s.hostile()
	}
	o.tensor.Strides = rope.Strides{Batch: strides[0], Token: strides[1], Head: strides[2]}
	return reach
}

// allow marks what a call on this operand may write: the rotated span, or whole heads.
func (o *operand[T]) allow(z sizes, whole bool) {
	t := &o.tensor
	if t.Heads < 0 || t.Heads > len(o.region.mask) {
		return // it must be refused, or nothing is to do
	}
	first, width, dim := z.info.RotaryOffset, z.info.RotaryDim, z.info.HeadDim
	if t.Span {
		first, dim = 0, width
	} else if whole || z.normed {
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
				at := o.offset + b*strides[0] + token*strides[1] + h*strides[2] + first
				if at >= 0 && at <= len(o.region.mask)-width { // else the call must be refused
					o.region.allow(at, width)
				}
			}
		}
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

// ids are positions of a random kind and their memory.
func positions(s *source, z sizes, sequences int) (rope.Positions, guarded) {
	n, kind := 0, s.below(8)
	switch kind {
	case 7:
		return rope.Same(s.position()), fence(s, 0, s.position)
	case 0:
		return rope.Offset(s.position()), fence(s, 0, s.position)
	case 1:
		n = sequences
	case 2:
		n = z.tokens
	case 3:
		n = z.batch * z.tokens
	default:
		n = z.info.Axes * z.batch * z.tokens
	}
	if s.oneIn(25) {
		n = max(0, n+pick(s, -1, 1, 7, -n))
	}
	switch s.below(3) {
	case 0:
		r := fence(s, n, s.position)
		if kind == 1 {
			return rope.SeqOffsets(r.inside), r
		}
		return idsOf(s, z, kind, r.inside), r
	case 1:
		r := fence(s, n, func() int32 { return int32(s.position()) })
		if kind == 1 {
			return rope.SeqOffsets(r.inside), r
		}
		return idsOf(s, z, kind, r.inside), r
	}
	r := fence(s, n, func() float32 { return float32(s.float()) })
	return idsOf(s, z, kind, r.inside), r
}

func idsOf[I int32 | int64 | float32](s *source, z sizes, kind int, ids []I) rope.Positions {
	switch kind {
	case 2:
		return rope.TokenIDs(ids)
	case 1, 3:
		return rope.BatchTokenIDs(ids)
	case 4:
		return rope.AxesBatchTokenIDs(ids)
	case 5:
		return rope.BatchTokenAxesIDs(ids)
	}
	return rope.StridedIDs(ids, s.number(z.batch*z.tokens), s.number(z.tokens), s.number(1))
}

// newStep is a step and the memory that it reads.
func newStep(s *source, z sizes) (rope.Step, []guarded) {
	step := rope.Step{Batch: s.number(z.batch), Tokens: s.number(z.tokens),
		Operation: pick(s, rope.OperationForward, rope.OperationForward, rope.OperationBackward, rope.OperationInverse, rope.OperationShift)}
	var memory []guarded
	sequences := z.batch
	if z.batch == 1 && s.oneIn(4) {
		sequences = 1 + s.below(3)
		cuts := fence(s, sequences+1, func() int32 { return int32(s.below(z.tokens + 1)) })
		cuts.inside[0] = 0
		for i := 1; i <= sequences; i++ {
			cuts.inside[i] = max(cuts.inside[i-1], cuts.inside[i])
		}
		cuts.inside[sequences] = int32(z.tokens)
		if s.oneIn(8) {
			cuts.inside[s.below(sequences+1)] = int32(s.hostile())
		}
		copy(cuts.before, cuts.whole)
		step.CuSeqlens, memory = cuts.inside, append(memory, cuts)
	}
	if (z.info.FreqSets > 1) != s.oneIn(30) {
		sets := fence(s, max(0, s.number(sequences)&63), func() int32 { return int32(s.number(s.below(z.info.FreqSets))) })
		step.FreqSets, memory = sets.inside, append(memory, sets)
	}
	ids, read := positions(s, z, sequences)
	if step.Operation == rope.OperationShift && !s.oneIn(8) {
		ids = rope.Same(s.position()) // others are mostly refused
	}
	step.Positions = ids
	if s.oneIn(40) {
		step.Operation = rope.Operation(s.hostile())
	}
	return step, append(memory, read)
}

// newRows are rows of cos and sin and their memory; write: all of it may change.
func newRows[T rope.Element](s *source, z sizes, write bool) (*rope.CosSin, []guarded) {
	format := s.below(7)
	width, n := 2*z.info.Pairs, z.batch*z.tokens
	if format == 2 {
		width = z.info.Pairs
	}
	stride := 0
	if s.oneIn(4) {
		stride = width + s.below(9)
	}
	shared := s.oneIn(5) && !write
	if shared {
		n = z.tokens
	}
	heads, headStride := 0, 0
	if s.oneIn(3) && !write {
		heads = 1 + s.below(3)
		n *= heads
		if s.oneIn(2) { // [batch, heads, tokens, row]
			stride = max(width, stride)
			headStride = z.tokens * stride
		} else if stride != 0 {
			stride *= heads
		}
	}
	length := n * max(width, stride)
	if s.oneIn(25) {
		length = max(0, length+pick(s, -1, 1, -length))
	}
	a, b := fence(s, length, element[T](s)), fence(s, length, element[T](s))
	told := s.number(stride)
	if write { // as many rows as fit, as the call sees them; a hostile stride wraps
		for _, r := range []*region[T]{a, b} {
			for at := 0; at >= 0 && at <= length-width; at += max(width, told) {
				r.allow(at, width)
			}
		}
	}
	rows := []func() *rope.CosSin{
		func() *rope.CosSin { return rope.Packed(a.inside) },
		func() *rope.CosSin { return rope.PackedSinFirst(a.inside) },
		func() *rope.CosSin { return rope.Split(a.inside, b.inside) },
		func() *rope.CosSin { return rope.FullHalves(a.inside, b.inside) },
		func() *rope.CosSin { return rope.FullInterleaved(a.inside, b.inside) },
		func() *rope.CosSin { return rope.Complex(a.inside) },
		func() *rope.CosSin { return rope.Sinusoidal(a.inside) },
	}[format]()
	rows.Stride, rows.Shared = told, shared
	rows.Heads, rows.HeadStride = s.number(heads), s.number(headStride)
	return rows, []guarded{a, b}
}

func newSizes(s *source, c *rope.Context) sizes {
	info, err := c.Info(0)
	if err != nil {
		info = rope.Info{HeadDim: 8, RotaryDim: 8, Pairs: 4, Axes: 1, FreqSets: 1} // closed
	}
	z := sizes{info: info, batch: pick(s, 1, 1, 1, 2, 3, 0), tokens: s.below(7)}
	if s.oneIn(60) && info.HeadDim <= 128 {
		z.tokens = 300 // beyond the threshold of pools
	}
	return z
}

// of are the sizes that a call with the step sees: another number may be as good. What no memory here
// can hold is refused, and stays as it was.
func (z sizes) of(step rope.Step) sizes {
	if step.Batch >= 0 && step.Batch < 1<<10 {
		z.batch = step.Batch
	}
	if step.Tokens >= 0 && step.Tokens < 1<<10 {
		z.tokens = step.Tokens
	}
	return z
}

func call[Q, K rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z)
	if s.oneIn(4) {
		var read []guarded
		step.CosSin, read = newRows[Q](s, z, false)
		memory = append(memory, read...)
		if !s.oneIn(20) {
			step.Positions, step.CuSeqlens, step.FreqSets = rope.Positions{}, nil, nil
			step.Operation = pick(s, rope.OperationForward, rope.OperationBackward)
		}
	}
	if s.oneIn(4) {
		step.Pool = f.pool
	}
	q, k := newOperand[Q](s, z), newOperand[K](s, z)
	packed(s, q, &k)
	z = z.of(step)
	memory = append(memory, norm(s, z, &step, q, k)...)
	z.normed = step.Norms != nil
	defer f.countNormed(step.Norms)()
	memory = append(memory, q.region, k.region)
	if s.oneIn(3) {
		prepared(f, t, s, c, step, q, k, z, memory)
		return
	}
	if s.oneIn(2) {
		q.allow(z, false)
		k.allow(z, false)
		f.judge(t, rope.ApplyQK(c, q.tensor, k.tensor, step), memory...)
		return
	}
	qOut, kOut := output(s, z, q), output(s, z, k)
	memory = append(memory, qOut.region, kOut.region)
	f.judge(t, rope.ApplyQKTo(c, qOut.tensor, kOut.tensor, q.tensor, k.tensor, step), memory...)
}

// prepared describes the tensors of a call, and applies it to their slices: to some of another length.
func prepared[Q, K rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context, step rope.Step, q operand[Q],
	k operand[K], z sizes, memory []guarded) {
	if rows := float64(step.Batch) * float64(step.Tokens); rows > 1<<16 {
		return // for which there may be memory, and which take long
	}
	qOut, kOut := output(s, z, q), output(s, z, k)
	memory = append(memory, qOut.region, kOut.region)
	p, err := rope.PrepareTo(c, qOut.shape(s), kOut.shape(s), q.shape(s), k.shape(s), step)
	if f.judge(t, err); err != nil {
		return
	}
	defer p.Close()
	if s.oneIn(20) {
		c.Close()
	}
	if s.oneIn(40) {
		p.Close()
	}
	f.judge(t, p.ApplyTo(qOut.slice(s), kOut.slice(s), q.slice(s), k.slice(s)), memory...)
}

// shape is the tensor without its slice, which now and then stays.
func (o *operand[T]) shape(s *source) rope.Tensor[T] {
	t := o.tensor
	if !s.oneIn(60) {
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

// output is one for an input: its own memory, the input itself, or none.
func output[T rope.Element](s *source, z sizes, in operand[T]) operand[T] {
	out := in
	switch s.below(6) {
	case 0: // exactly the input
		out.allow(z, false)
		return out
	case 1: // in place
		out.tensor = rope.Tensor[T]{}
		in.allow(z, false)
		return out
	}
	for range 8 {
		out = newOperand[T](s, z)
		if s.oneIn(20) {
			break
		}
		if out.tensor.Heads == in.tensor.Heads || out.tensor.Layout != rope.LayoutStrided && len(in.tensor.Data) == len(out.tensor.Data) {
			break
		}
	}
	if out.tensor.Data == nil && out.tensor.Layout == 0 { // in place as well
		in.allow(z, false)
	}
	out.allow(z, !in.tensor.Span && !out.tensor.Span)
	return out
}

func short[T rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	z.batch = 1
	ids := fence(s, z.tokens, s.position)
	tensor := func() (*region[T], int) {
		heads := s.below(4)
		n := z.tokens * heads * z.info.HeadDim
		if s.oneIn(30) {
			n = max(0, n+pick(s, -1, 1, 64))
		}
		r := fence(s, n, element[T](s))
		o := operand[T]{tensor: rope.BSHD(r.inside, heads), region: r}
		o.allow(z, false)
		return r, s.number(heads)
	}
	q, qHeads := tensor()
	k, kHeads := tensor()
	f.judge(t, rope.ApplyTHD(c, ids.inside, q.inside, qHeads, k.inside, kHeads), ids, q, k)
}

func fill[T rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z)
	out, written := newRows[T](s, z, true)
	if s.oneIn(4) {
		r := fence(s, z.batch*z.tokens*z.info.Pairs, element[float32](s))
		r.allow(0, len(r.inside))
		out, written = rope.Angles(r.inside), []guarded{r}
	}
	f.judge(t, rope.FillCosSin(c, step, out), append(memory, written...)...)
}
