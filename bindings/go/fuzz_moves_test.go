package rope_test

// The fuzzer's calls that move what a cache holds, within it and to another.

import (
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

func moveCall[K, V, ToK, ToV rope.OutputElement](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z, true)
	switch s.below(6) {
	case 0, 1, 2:
		memory = append(memory, addFrom(s, z, &step)...)
	case 3, 4:
		step.Operation, step.Positions = rope.OperationShift, rope.Same(s.position())
	default:
		step.Unturned = step.Operation == rope.OperationForward && !s.oneIn(8)
	}
	pages, pageSize := newPageSizes(s, z, step)
	from := newPlaces(s, z, step, pages, pageSize)
	to := from
	if s.oneIn(2) {
		to, step.Source = newPlaces(s, z, step, pages, pageSize), from.slots
	}
	step.Slots = to.slots
	memory = append(append(memory, from.memory...), to.memory...)
	if s.oneIn(4) {
		step.Pool = f.pool
	}
	vDim, span := pick(s, z.info.HeadDim, 1+s.below(40)), s.oneIn(5)
	kHeads, vHeads := max(1, z.info.FreqHeads)*(1+s.below(3)), 1+s.below(3)
	source := newStore[K, V](s, z, kHeads, vHeads, vDim, pages, pageSize, span)
	memory = append(memory, source.memory()...)
	kinds := kindsOf(step)
	written := func(pageSize int) []int { // tokens that were nowhere are nowhere
		told := z.of(step)
		slots := to.slotsOf(told, step, pageSize)
		for i, slot := range from.slotsOf(told, step, source.pageSize) {
			if slot < 0 && i < len(slots) {
				slots[i] = -1
			}
		}
		return slots
	}
	if s.oneIn(2) {
		err := rope.MoveSlots(c, source.typed(s), step)
		if err == nil {
			source.allow(written(source.pageSize), step.Source != nil) // else values stay
		}
		f.count(err, append(kinds, "MoveSlots")...)
		f.judge(t, err, memory...)
		return
	}
	cache := newStore[ToK, ToV](s, z, source.keys.heads(), source.values.heads(), vDim, pages, pageSize, span != s.oneIn(8))
	memory = append(memory, cache.memory()...)
	err := rope.MoveBetween(c, source.typed(s), cache.typed(s), step)
	if err == nil {
		cache.allow(written(cache.pageSize), true)
	}
	f.count(err, append(kinds, "MoveBetween")...)
	f.judge(t, err, memory...)
}
