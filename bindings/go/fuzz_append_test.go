package rope_test

// Calls of the fuzzer that store k and v in a cache: its memory, its slots, and what may change.

import (
	"math"
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

// places are slots of some kind, their memory, and which slots the tokens of an accepted call have.
type places struct {
	slots  *rope.Slots
	memory []guarded
	taken  func(pageSize int) []int
}

func newPlaces(s *source, lengths []int, pages, pageSize int) places {
	tokens, longest := 0, 0
	for _, length := range lengths {
		tokens, longest = tokens+length, max(longest, length)
	}
	kind := s.below(5)
	if kind < 2 {
		n := tokens
		if s.oneIn(8) {
			n = max(0, n+pick(s, -1, 1, 9, -n))
		}
		number := func() int64 {
			switch s.below(40) {
			case 0:
				return int64(s.hostile())
			case 1, 2, 3, 4:
				return -1
			}
			return int64(s.below(max(1, pages*pageSize)))
		}
		wide := fence(s, n, number)
		narrow := fence(s, n, func() int32 { return int32(number()) })
		p := places{rope.MappedSlots(wide.inside), []guarded{wide, narrow}, func(int) (slots []int) {
			for i := range min(n, tokens) {
				slots = append(slots, int(wide.inside[i]))
			}
			return slots
		}}
		if kind == 1 {
			p.slots = rope.MappedSlots(narrow.inside)
			p.taken = func(int) (slots []int) {
				for i := range min(n, tokens) {
					slots = append(slots, int(narrow.inside[i]))
				}
				return slots
			}
		}
		return p
	}
	last := 2 * pageSize
	if kind == 4 {
		last = max(0, pageSize-longest)
	}
	starts := fence(s, max(0, s.number(len(lengths))&1023), func() int32 {
		if s.oneIn(60) {
			return int32(s.hostile())
		}
		return int32(s.below(last + 1))
	})
	width := (last + longest + pageSize) / max(1, pageSize)
	length := len(lengths) * width
	if s.oneIn(25) {
		length = max(0, length+pick(s, -1, 1, -length))
	}
	table := fence(s, length, func() int32 {
		switch s.below(40) {
		case 0:
			return int32(s.hostile())
		case 1, 2:
			return -1
		}
		return int32(s.below(max(1, pages)))
	})
	row := int32(0)
	pageStarts := fence(s, len(lengths)+1, func() int32 {
		row += int32(width)
		return int32(s.number(int(row)))
	})
	for i := range pageStarts.inside { // the fences have drawn, too
		pageStarts.inside[i] = int32(s.number(i * width))
	}
	copy(pageStarts.before, pageStarts.whole)
	told := s.number(width)
	p := places{memory: []guarded{starts, table, pageStarts}}
	p.taken = func(pageSize int) (slots []int) {
		for q, length := range lengths {
			for n := int(starts.inside[q]); n < int(starts.inside[q])+length; n++ {
				page := q
				switch kind {
				case 2:
					page = int(table.inside[q*told+n/pageSize])
				case 3:
					page = int(table.inside[int(pageStarts.inside[q])+n/pageSize])
				}
				slots = append(slots, page*pageSize+n%pageSize)
			}
		}
		return slots
	}
	switch kind {
	case 2:
		p.slots = rope.PagedSlots(table.inside, told, starts.inside)
	case 3:
		p.slots = rope.RaggedSlots(table.inside, pageStarts.inside, starts.inside)
	default:
		p.slots = rope.LinearSlots(starts.inside)
	}
	return p
}

// newPages is memory of a cache for a tensor with these heads.
func newPages[T rope.Element](s *source, heads, dim, pages, pageSize int) operand[T] {
	var o operand[T]
	heads = max(0, min(heads, 64))
	n := pages * pageSize * heads * dim
	o.tensor = pick(s, rope.NHD[T](nil, heads), rope.HND[T](nil, heads), rope.Strided[T](nil, heads, rope.Strides{}))
	if o.tensor.Layout == rope.LayoutStrided {
		n = o.stride(s, sizes{batch: pages, tokens: pageSize}, heads, dim)
		if s.oneIn(2) {
			o.tensor.Strides.Head = max(o.tensor.Strides.Head, dim) // most of 0 are refused
		}
	}
	if s.oneIn(25) {
		n = max(0, n+pick(s, -1, 1, -dim, dim, -n))
	}
	o.region = fence(s, n, element[T](s))
	o.tensor.Data = o.region.inside
	if s.oneIn(40) {
		o.tensor.Layout = rope.Layout(s.hostile())
	}
	return o
}

// allowSlots marks the heads of these slots.
func (o *operand[T]) allowSlots(slots []int, dim, pages, pageSize int) {
	t := o.tensor
	strides := [3]int{t.Strides.Batch, t.Strides.Token, t.Strides.Head}
	switch t.Layout {
	case rope.LayoutNHD:
		strides = [3]int{pageSize * t.Heads * dim, t.Heads * dim, dim}
	case rope.LayoutHND:
		strides = [3]int{t.Heads * pageSize * dim, dim, pageSize * dim}
	}
	for _, slot := range slots {
		for h := range t.Heads {
			at := slot/pageSize*strides[0] + slot%pageSize*strides[1] + h*strides[2]
			if slot >= 0 && slot < pages*pageSize && at >= 0 && at <= len(o.region.mask)-dim { // else it must be refused
				o.region.allow(at, dim)
			}
		}
	}
}

func appendCall[Q, K, V rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z)
	z = z.of(step)
	lengths := make([]int, z.batch)
	for i := range lengths {
		lengths[i] = z.tokens
	}
	if step.CuSeqlens != nil {
		lengths = make([]int, max(0, len(step.CuSeqlens)-1))
		for i := range lengths {
			lengths[i] = max(0, min(4096, int(step.CuSeqlens[i+1])-int(step.CuSeqlens[i])))
		}
	}
	pages, pageSize := max(1, len(lengths))*(1+s.below(3)), min(z.tokens, 64)+1+s.below(9)
	p := newPlaces(s, lengths, pages, pageSize)
	step.Slots = p.slots
	memory = append(memory, p.memory...)
	if s.oneIn(4) {
		step.Pool = f.pool
	}

	q, k := newOperand[Q](s, z), newOperand[K](s, z)
	memory = append(memory, norm(s, z, &step, q, k)...)
	z.normed = step.Norms != nil
	defer f.countNormed(step.Norms)()
	dim := z.info.HeadDim
	if s.oneIn(2) {
		dim = 1 + s.below(40)
	}
	vSizes := sizes{info: rope.Info{HeadDim: dim, RotaryDim: dim}, batch: z.batch, tokens: z.tokens}
	v := newOperand[V](s, vSizes)
	v.tensor.Span = s.oneIn(60)
	kDim := z.info.HeadDim
	span := k.tensor.Span != s.oneIn(8)
	if span {
		kDim = z.info.RotaryDim
	}
	keys := newPages[K](s, k.tensor.Heads, kDim, pages, pageSize)
	keys.tensor.Span = span
	values := newPages[V](s, v.tensor.Heads, dim, pages, pageSize)
	memory = append(memory, q.region, k.region, v.region, keys.region, values.region)

	cache := rope.KVCache[K, V]{K: keys.tensor, V: values.tensor, Pages: s.number(pages), PageSize: s.number(pageSize)}
	if dim != z.info.HeadDim {
		cache.VHeadDim = s.number(dim)
	}
	if k.tensor.Heads == 0 || s.oneIn(8) {
		cache.K = rope.Tensor[K]{}
	}
	if v.tensor.Heads == 0 || s.oneIn(8) {
		cache.V = rope.Tensor[V]{}
	}
	q.allow(z, false)
	allow := func() { // of a call that has been accepted
		if z.batch == 0 || z.tokens == 0 || cache.PageSize <= 0 {
			return
		}
		taken := p.taken(cache.PageSize)
		if cache.K.Data != nil {
			keys.allowSlots(taken, kDim, cache.Pages, cache.PageSize)
		}
		if cache.V.Data != nil {
			values.allowSlots(taken, dim, cache.Pages, cache.PageSize)
		}
	}
	if cache.Pages > math.MaxInt32 {
		allow = func() {} // products wrap
	}
	if s.oneIn(3) {
		kOut := output(s, z, k)
		vOut := newOperand[V](s, vSizes)
		vOut.tensor.Span = false
		vOut.allow(vSizes, true)
		memory = append(memory, kOut.region, vOut.region)
		err := rope.AppendTo(c, rope.Tensor[Q]{}, kOut.tensor, vOut.tensor, q.tensor, k.tensor, v.tensor, cache, step)
		if err == nil {
			allow()
		}
		f.judge(t, err, memory...)
		return
	}
	if rows := float64(step.Batch) * float64(step.Tokens); rows <= 1<<16 && s.oneIn(2) { // others take memory
		shapes := rope.KVCache[K, V]{Pages: cache.Pages, PageSize: cache.PageSize, VHeadDim: cache.VHeadDim}
		keysGiven, valuesGiven := operand[K]{tensor: cache.K}, operand[V]{tensor: cache.V}
		shapes.K, shapes.V = keysGiven.shape(s), valuesGiven.shape(s)
		p, err := rope.PrepareAppend(c, q.shape(s), k.shape(s), v.shape(s), shapes, step)
		if f.judge(t, err); err != nil {
			return
		}
		defer p.Close()
		err = p.Apply(q.slice(s), k.slice(s), v.slice(s), keysGiven.slice(s), valuesGiven.slice(s))
		if err == nil {
			allow()
			f.appended++
		}
		f.judge(t, err, memory...)
		return
	}
	err := rope.Append(c, q.tensor, k.tensor, v.tensor, cache, step)
	if err == nil {
		allow()
		f.appended++
	}
	f.judge(t, err, memory...)
}
