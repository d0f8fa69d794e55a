package rope_test

// Caches of the fuzzer's calls: their memory, the slots of tokens, and what may change.

import (
	"math"

	rope "github.com/librope/librope/bindings/go"
)

// places are slots of some kind, their memory, and which slots the tokens of an accepted call have, whose sequences
// have these lengths.
type places struct {
	slots  *rope.Slots
	memory []guarded
	taken  func(lengths []int, pageSize int) []int
}

// mapped are the slots with these numbers.
func mapped[I int32 | int64](numbers []I, lengths []int) (slots []int) {
	tokens := 0
	for _, length := range lengths {
		tokens += length
	}
	for _, number := range numbers[:min(len(numbers), tokens)] {
		slots = append(slots, int(number))
	}
	return slots
}

// newPageSizes draws how many pages, and slots in each, a cache has, in which most starts leave room for the tokens.
func newPageSizes(s *source, z sizes, step rope.Step) (pages, pageSize int) {
	return max(1, len(lengthsOf(z, step))) * (1 + s.below(3)), min(z.tokens, 64) + 1 + s.below(9)
}

func newPlaces(s *source, z sizes, step rope.Step, pages, pageSize int) places {
	lengths := lengthsOf(z, step)
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
		p := places{memory: []guarded{wide, narrow}}
		if kind == 0 {
			p.slots = rope.MappedSlots(wide.inside)
			p.taken = func(lengths []int, _ int) []int { return mapped(wide.inside, lengths) }
		} else {
			p.slots = rope.MappedSlots(narrow.inside)
			p.taken = func(lengths []int, _ int) []int { return mapped(narrow.inside, lengths) }
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
	table := fence(s, s.length(25, len(lengths)*width), func() int32 {
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
	p.taken = func(lengths []int, pageSize int) (slots []int) {
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

// slotsOf are those that the tokens of an accepted call with these sizes have.
func (p *places) slotsOf(told sizes, step rope.Step, pageSize int) []int {
	if told.batch == 0 || told.tokens == 0 || pageSize <= 0 {
		return nil
	}
	return p.taken(lengthsOf(told, step), pageSize)
}

// lengthsOf are the tokens of each sequence of a step.
func lengthsOf(z sizes, step rope.Step) []int {
	if step.CuSeqlens == nil {
		lengths := make([]int, z.batch)
		for i := range lengths {
			lengths[i] = z.tokens
		}
		return lengths
	}
	lengths := make([]int, max(0, len(step.CuSeqlens)-1))
	for i := range lengths {
		lengths[i] = max(0, min(4096, int(step.CuSeqlens[i+1])-int(step.CuSeqlens[i])))
	}
	return lengths
}

// newPages is memory of a cache for a tensor with these heads.
func newPages[T rope.OutputElement](s *source, heads, dim, pages, pageSize int, span bool) coded[T] {
	var o operand[T]
	n := pages * pageSize * heads * dim
	o.tensor = pick(s, rope.NHD[T](nil, heads), rope.HND[T](nil, heads), rope.Strided[T](nil, heads, rope.Strides{}))
	if o.tensor.Layout == rope.LayoutStrided {
		n = o.stride(s, sizes{batch: pages, tokens: pageSize}, heads, dim)
		if s.oneIn(2) {
			o.tensor.Strides.Head = max(o.tensor.Strides.Head, dim) // most of 0 are refused
		}
	}
	o.region = fence(s, s.length(60, (n+channelsOf[T]()-1)/channelsOf[T](), dim, -dim), element[T](s))
	o.tensor.Data, o.tensor.Span = o.region.inside, span
	if s.oneIn(40) {
		o.tensor.Layout = rope.Layout(s.hostile())
	}
	return withScales(s, sizes{batch: pages, tokens: pageSize}.plain(dim), o)
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
			if slot >= 0 && slot < pages*pageSize { // else it is nowhere, or must be refused
				o.mark(slot/pageSize*strides[0]+slot%pageSize*strides[1]+h*strides[2], dim)
			}
		}
	}
}

// store is a cache of a call: the memory of keys and of values, either of which may be absent.
type store[K, V rope.OutputElement] struct {
	keys            coded[K]
	values          coded[V]
	kDim, vDim      int // channels of a head in them
	pages, pageSize int // as the call is told
}

// newStore is one for k and v with these heads.
func newStore[K, V rope.OutputElement](s *source, z sizes, kHeads, vHeads, vDim, pages, pageSize int, span bool) store[K, V] {
	x := store[K, V]{kDim: z.channels(span), vDim: vDim, pages: s.number(pages), pageSize: s.number(pageSize)}
	x.keys, x.values = coded[K]{operand: noOperand[K](s)}, coded[V]{operand: noOperand[V](s)}
	if kHeads != 0 && !s.oneIn(8) {
		x.keys = newPages[K](s, kHeads, x.kDim, pages, pageSize, span)
	}
	if vHeads != 0 && !s.oneIn(8) {
		x.values = newPages[V](s, vHeads, vDim, pages, pageSize, s.oneIn(60))
	}
	if vDim != z.info.HeadDim {
		x.values.headDim = vDim
	}
	return x
}

// typed is the store as Append takes it, which prepares no scales.
func (x *store[K, V]) typed(s *source) rope.KVCache[K, V] {
	return rope.KVCache[K, V]{K: x.keys.tensor, KScale: x.keys.scales.of, V: x.values.tensor, VScale: x.values.scales.of,
		Pages: x.pages, PageSize: x.pageSize, VHeadDim: s.number(x.values.headDim)}
}

func (x *store[K, V]) memory() []guarded { return append(x.keys.memory(), x.values.memory()...) }

// allow marks the slots that a call has written; values: not of keys alone.
func (x *store[K, V]) allow(slots []int, values bool) {
	if x.pages > math.MaxInt32 { // products wrap
		return
	}
	if !x.keys.absent() {
		x.keys.allowSlots(slots, x.kDim, x.pages, x.pageSize)
		x.keys.scales.allowSlots(slots, x.pages, x.pageSize)
	}
	if values && !x.values.absent() {
		x.values.allowSlots(slots, x.vDim, x.pages, x.pageSize)
		x.values.scales.allowSlots(slots, x.pages, x.pageSize)
	}
}
