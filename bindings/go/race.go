package rope

// #include "shim.h"
import "C"

import (
	"slices"
	"unsafe"
)

// What calls that succeeded have read and written, for the race detector, which sees Go's accesses
// only: exactly these elements, because goroutines may share a buffer whose parts they own.

// tellRace reports the arrays of a step; rows is a call that writes its rows.
func (step *Step) tellRace(c *contextState, writes bool) {
	batch, tokens := step.Batch, step.Tokens
	if batch == 0 || tokens == 0 { // nothing is read, though the other number may be huge
		return
	}
	if p := &step.Positions; p.ids != nil {
		size := uint64(4)
		if p.typ == 8 {
			size = 8
		}
		if p.kind != C.ROPE_POSITIONS_IDS_STRIDED {
			raceRead(p.ids, uint64(p.len)*size)
		} else {
			blocks(raceRead, p.ids, size, [3]int{c.info.Axes, step.positionRows(), tokens},
				[3]int{p.strideAxis, p.strideBatch, p.strideToken}, 0, 1)
		}
	}
	raceRead(unsafe.Pointer(unsafe.SliceData(step.CuSeqlens)), uint64(len(step.CuSeqlens))*4)
	raceRead(unsafe.Pointer(unsafe.SliceData(step.FreqSets)), uint64(len(step.FreqSets))*4)
	if step.Norms != nil {
		step.Norms.tellRace()
	}
	if r := step.CosSin; r != nil {
		tell, width := raceRead, r.width(c.info.Pairs)
		if writes {
			tell = raceWrite
		}
		strides, _ := r.strides(width, tokens)
		if r.Shared && !writes {
			batch = min(batch, 1)
		}
		for _, data := range []unsafe.Pointer{r.data, r.sin} {
			if data != nil {
				blocks(tell, data, r.element, [3]int{batch, tokens, max(1, r.Heads)}, strides, 0, width)
			}
		}
	}
}

// tellRace reports one input and its output, which may be nil, and whose heads are normed if there is a
// norm.
func tellRace[T Element](in, out *Tensor[T], norm *Norm, c *contextState, step *Step) {
	if in.empty() || step.Batch == 0 || step.Tokens == 0 {
		return
	}
	inPlace := out == nil || out.zero() || unsafe.SliceData(out.Data) == unsafe.SliceData(in.Data)
	if inPlace {
		out = in
	}
	whole := (!inPlace || norm != nil) && !in.Span && !out.Span // the rest is copied, or normed
	if !inPlace {
		in.touch(raceRead, whole, c, step)
	}
	if !inPlace || !c.nope || norm != nil {
		out.touch(raceWrite, whole, c, step)
	}
}

// touch tells of the span of every head, or of whole heads.
func (t *Tensor[T]) touch(tell func(unsafe.Pointer, uint64), whole bool, c *contextState, step *Step) {
	first, width := t.part(whole, c)
	blocks(tell, unsafe.Pointer(unsafe.SliceData(t.Data)), uint64(unsafe.Sizeof(t.Data[0])),
		[3]int{step.Batch, step.Tokens, t.Heads}, t.strides(t.channels(c), step), first, width)
}

// part is which channels of its heads a call reads or writes.
func (t *Tensor[T]) part(whole bool, c *contextState) (first, width int) {
	switch {
	case t.Span:
		return 0, c.info.RotaryDim
	case whole:
		return 0, c.info.HeadDim
	}
	return c.info.RotaryOffset, c.info.RotaryDim
}

// tellStores reports k, v and their outputs, the slots that their tokens have, and where these stand.
func tellStores[K, V Element, CK, CV OutputElement](cache *KVCache[CK, CV], k, kOut *Tensor[K], v, vOut *Tensor[V],
	slots []int, c *contextState, step *Step) {
	if step.Batch == 0 || step.Tokens == 0 {
		return
	}
	size, dim := cache.size(), cache.vDim(c)
	if !k.empty() {
		inPlace := false
		if kOut != nil && !kOut.zero() {
			tellRace(k, kOut, step.Norms.k(), c, step)
			inPlace = unsafe.SliceData(kOut.Data) == unsafe.SliceData(k.Data)
		}
		if !cache.K.empty() {
			whole := !k.Span && !cache.K.Span
			if !inPlace {
				k.touch(raceRead, whole, c, step)
			}
			first, width := cache.K.part(whole, c)
			cache.K.tellSlots(raceWrite, slots, cache.PageSize, cache.K.strides(cache.K.channels(c), &size), first, width)
			cache.KScale.tellWrites(slots, cache.K.Layout, cache.K.Heads, cache.K.channels(c), size)
		}
	}
	if v.empty() {
		return
	}
	all := [3]int{step.Batch, step.Tokens, v.Heads}
	bytes := uint64(unsafe.Sizeof(v.Data[0]))
	blocks(raceRead, unsafe.Pointer(unsafe.SliceData(v.Data)), bytes, all, v.strides(dim, step), 0, dim)
	normed := step.Norms != nil && step.Norms.V != nil
	if vOut != nil && !vOut.zero() && (normed || unsafe.SliceData(vOut.Data) != unsafe.SliceData(v.Data)) {
		blocks(raceWrite, unsafe.Pointer(unsafe.SliceData(vOut.Data)), bytes, all, vOut.strides(dim, step), 0, dim)
	}
	if !cache.V.empty() {
		cache.V.tellSlots(raceWrite, slots, cache.PageSize, cache.V.strides(dim, &size), 0, dim)
		cache.VScale.tellWrites(slots, cache.V.Layout, cache.V.Heads, dim, size)
	}
}

// tellRace reports what a call has read and written.
func (call *Call) tellRace(c *contextState, step *Step) {
	if step.Batch == 0 || step.Tokens == 0 {
		return
	}
	step.tellRace(c, false)
	var slots []int
	if call.Cache != nil {
		slots = step.Slots.of(step, call.Cache.PageSize)
	}
	call.tellParts(c, step, slots)
}

// tellParts reports tensors, the memory of these slots, and scales.
func (call *Call) tellParts(c *contextState, step *Step, slots []int) {
	if step.Batch == 0 || step.Tokens == 0 {
		return
	}
	stored := call.Cache != nil && !call.Cache.K.empty()
	call.Q.tellPair(&call.QOut, step.Norms.q() != nil, false, c, step)
	call.K.tellPair(&call.KOut, step.Norms.k() != nil, stored, c, step)
	normed := step.Norms != nil && step.Norms.V != nil
	call.V.tellCopy(&call.VOut, normed, c, step)
	call.Rest.tellCopy(&call.RestOut, false, c, step)
	if call.Cache == nil {
		return
	}
	size := Step{Batch: call.Cache.Pages, Tokens: call.Cache.PageSize}
	for _, memory := range []*AnyTensor{&call.Cache.K, &call.Cache.V} {
		if memory.empty() {
			continue
		}
		first, width := 0, memory.channels(c)
		if memory == &call.Cache.K {
			first, width = memory.form.part(!call.K.form.Span && !memory.form.Span, c)
		}
		dim := memory.channels(c)
		strides := memory.form.strides(dim, &size)
		for _, slot := range slots {
			at := slot/size.Tokens*strides[0] + slot%size.Tokens*strides[1] + first
			memory.blocks(raceWrite, [3]int{1, 1, memory.form.Heads}, [3]int{0, 0, strides[2]}, at, width)
		}
		memory.scale.tellWrites(slots, memory.form.Layout, memory.form.Heads, dim, size)
	}
}

// tellPair reports q or k and its output; stored: where it also goes to a cache, it does not turn in place.
func (t *AnyTensor) tellPair(out *AnyTensor, normed, stored bool, c *contextState, step *Step) {
	if t.empty() {
		return
	}
	inPlace := out.zero() && !stored || !out.zero() && out.data == t.data
	whole := (!inPlace || normed) && !t.form.Span && !out.form.Span
	switch {
	case !inPlace:
		t.touch(raceRead, whole, c, step)
		out.touch(raceWrite, whole, c, step)
	case !c.nope || normed:
		t.touch(raceWrite, whole, c, step)
	}
}

// tellCopy reports v or the rest, and its output.
func (t *AnyTensor) tellCopy(out *AnyTensor, normed bool, c *contextState, step *Step) {
	if t.empty() {
		return
	}
	if out.zero() || out.data != t.data {
		t.touch(raceRead, true, c, step)
		out.touch(raceWrite, true, c, step)
	} else if normed {
		out.touch(raceWrite, true, c, step)
	}
}

// touch tells of the span of every head, or of whole heads, and of their scales.
func (t *AnyTensor) touch(tell func(unsafe.Pointer, uint64), whole bool, c *contextState, step *Step) {
	if t.empty() {
		return
	}
	dim := t.channels(c)
	first, width := 0, dim
	if t.headDim == 0 {
		first, width = t.form.part(whole, c)
	}
	t.blocks(tell, [3]int{step.Batch, step.Tokens, t.form.Heads}, t.form.strides(dim, step), first, width)
	t.scale.tellAll(t.form.Layout, t.form.Heads, dim, *step)
}

// tellMove reports what a move reads and writes in the slots of its tokens. One that is nowhere does neither. Where one
// stays, its value is left alone, and so is a key that does not turn.
func tellMove[SK, SV, K, V OutputElement](source *KVCache[SK, SV], cache *KVCache[K, V], from, to *Slots, c *contextState,
	step *Step) {
	if step.Batch == 0 || step.Tokens == 0 {
		return
	}
	read := from.each(step, source.PageSize)
	written := read
	if to != from {
		written = to.each(step, cache.PageSize)
	}
	// Tokens stay that keep their slot in one memory.
	split := func(one bool) (reads, writes, stays []int) {
		for i, slot := range read[:min(len(read), len(written))] {
			switch {
			case slot < 0 || written[i] < 0:
			case one && slot == written[i]:
				stays = append(stays, slot)
			default:
				reads, writes = append(reads, slot), append(writes, written[i])
			}
		}
		return reads, writes, stays
	}
	if !cache.K.empty() {
		reads, writes, stays := split(addressOf(source.K.Data) == addressOf(cache.K.Data))
		whole := !source.K.Span && !cache.K.Span
		source.tellKeys(raceRead, raceRead, reads, whole, c)
		cache.tellKeys(raceWrite, cache.KScale.tell(), writes, whole, c)
		if !c.nope { // in place the rest is left alone, but that codes are stored as whole heads
			isCode := cache.KScale != nil || dtypeOf[K]() == DTypeQ80
			cache.tellKeys(raceWrite, cache.KScale.tell(), stays, whole && isCode, c)
		}
	}
	if !cache.V.empty() {
		reads, writes, _ := split(addressOf(source.V.Data) == addressOf(cache.V.Data))
		source.tellValues(raceRead, raceRead, reads, c)
		cache.tellValues(raceWrite, cache.VScale.tell(), writes, c)
	}
}

// tellKeys reports keys in these slots and their scales.
func (cache *KVCache[K, V]) tellKeys(tell, tellScale func(unsafe.Pointer, uint64), slots []int, whole bool,
	c *contextState) {
	size, dim := cache.size(), cache.K.channels(c)
	first, width := cache.K.part(whole, c)
	cache.K.tellSlots(tell, slots, cache.PageSize, cache.K.strides(dim, &size), first, width)
	cache.KScale.tellSlots(tellScale, slots, cache.K.Layout, cache.K.Heads, dim, size)
}

// tellValues reports values in these slots and their scales.
func (cache *KVCache[K, V]) tellValues(tell, tellScale func(unsafe.Pointer, uint64), slots []int, c *contextState) {
	size, dim := cache.size(), cache.vDim(c)
	cache.V.tellSlots(tell, slots, cache.PageSize, cache.V.strides(dim, &size), 0, dim)
	cache.VScale.tellSlots(tellScale, slots, cache.V.Layout, cache.V.Heads, dim, size)
}

// tellSlots reports reads of these slots, or writes to them.
func (t *Tensor[T]) tellSlots(tell func(unsafe.Pointer, uint64), slots []int, pageSize int, strides [3]int, first, width int) {
	memory := ArrayOf(t.Data)
	for _, slot := range slots {
		at := slot/pageSize*strides[0] + slot%pageSize*strides[1] + first
		memory.blocks(tell, [3]int{1, 1, t.Heads}, [3]int{0, 0, strides[2]}, at, width)
	}
}

// of returns the slots that the tokens of a call have, and reports what was read for them.
func (s *Slots) of(step *Step, pageSize int) []int {
	return slices.DeleteFunc(s.each(step, pageSize), func(slot int) bool { return slot < 0 })
}

// each is of with a slot for each token; negative: nowhere.
func (s *Slots) each(step *Step, pageSize int) (slots []int) {
	if step.Batch == 0 || step.Tokens == 0 {
		return nil
	}
	number := func(i int, bytes uint64) int {
		at := unsafe.Add(s.numbers, uintptr(i)*uintptr(bytes))
		raceRead(at, bytes)
		if bytes == 8 {
			return int(*(*int64)(at))
		}
		return int(*(*int32)(at))
	}
	if s.kind == C.ROPE_SLOTS_MAPPED {
		for i := range min(s.len, step.Batch*step.Tokens) {
			slots = append(slots, number(i, uint64(s.bytes)))
		}
		return slots
	}
	raceRead(unsafe.Pointer(unsafe.SliceData(s.starts)), uint64(len(s.starts))*4)
	raceRead(unsafe.Pointer(unsafe.SliceData(s.pageStarts)), uint64(len(s.pageStarts))*4)
	for sequence, start := range s.starts {
		count, row := step.Tokens, sequence*s.width
		if step.CuSeqlens != nil {
			count = int(step.CuSeqlens[sequence+1] - step.CuSeqlens[sequence])
		}
		if s.pageStarts != nil {
			row = int(s.pageStarts[sequence])
		}
		for n := int(start); n < int(start)+count; n++ {
			page := sequence
			if s.kind == C.ROPE_SLOTS_PAGED {
				page = number(row+n/pageSize, 4)
			}
			slots = append(slots, page*pageSize+n%pageSize) // of a negative page negative
		}
	}
	return slots
}

// strides are those of the layout, in the order batch, token, head; of a cache page, slot, head.
func (t *Tensor[T]) strides(dim int, step *Step) [3]int {
	switch t.Layout {
	case LayoutBSHD, LayoutNHD:
		return [3]int{step.Tokens * t.Heads * dim, t.Heads * dim, dim}
	case LayoutBHSD, LayoutHND:
		return [3]int{t.Heads * step.Tokens * dim, dim, step.Tokens * dim}
	case LayoutSBHD:
		return [3]int{t.Heads * dim, step.Batch * t.Heads * dim, dim}
	}
	return [3]int{t.Strides.Batch, t.Strides.Token, t.Strides.Head}
}

// blocks tells of width channels, from the channel first on, at every point of a grid.
func (a *Array) blocks(tell func(unsafe.Pointer, uint64), counts, strides [3]int, first, width int) {
	n := a.dtype.channels()
	for i := range strides {
		strides[i] /= n
	}
	blocks(tell, a.data, a.bytes, counts, strides, first/n, width/n)
}

// blocks tells of width elements, from the element first on, at every point of a grid.
func blocks(tell func(unsafe.Pointer, uint64), data unsafe.Pointer, size uint64, counts, strides [3]int,
	first, width int) {
	for a := range counts[0] {
		for b := range counts[1] {
			for c := range counts[2] {
				at := a*strides[0] + b*strides[1] + c*strides[2] + first
				tell(unsafe.Add(data, uintptr(at)*uintptr(size)), uint64(width)*size)
			}
		}
	}
}
