package rope

/*
// The call keeps no pointer to a slice and calls nothing in Go.
#cgo noescape ropego_move
#cgo nocallback ropego_move
#include "shim.h"
*/
import "C"

import "unsafe"

// MoveSlots moves keys, and values beside them, that the cache holds already: from the slots that
// Step.Source names to those of Step.Slots. Without a source the keys turn in their slots, and values stay.
// Step.Operation says how they turn: OperationRerotate from the positions of Step.From to Step.Positions,
// OperationShift by distances; with ScalingNope they move as they are. OperationForward is for keys that were
// stored as they came, and needs Step.Unturned: those that have turned would turn once more.
//
// A slot that is written is read by the token that goes there alone: tokens cannot be moved up one by one,
// or in a circle, and a page that two sequences share turns once or not at all. A call that would read what
// it has written is refused, and nothing is written then. A token whose source is negative is skipped.
//
// A cache in 8 bits moves with its scales: computed ones are read, and computed anew for keys that turn; values
// and keys that stay as they are keep their codes, and take computed scales along.
func MoveSlots[K, V OutputElement](c *Context, cache KVCache[K, V], step Step) error {
	return move("MoveSlots", c, &cacheNames, &cache, &cache, &step)
}

// MoveBetween is MoveSlots from one cache, which is only read, to another that has no memory in common with
// it. Tokens may go to any slots there. Each may have types and scales of its own: codes are made, or read, on
// the way.
func MoveBetween[SK, SV, K, V OutputElement](c *Context, source KVCache[SK, SV], cache KVCache[K, V], step Step) error {
	return move("MoveBetween", c, &sourceNames, &source, &cache, &step)
}

func move[SK, SV, K, V OutputElement](function string, c *Context, names *memoryNames, source *KVCache[SK, SV],
	cache *KVCache[K, V], step *Step) error {
	use, err := c.forSlices(function)
	if err != nil {
		return err
	}
	defer use.leave()
	state := &use.body.value
	if step.Batch == 0 && step.Tokens > 0 {
		return step.noBatch(function)
	}
	if step.Slots == nil {
		return invalid(function, "Step.Slots is required: MappedSlots, PagedSlots or another of its kind")
	}
	if step.CosSin != nil {
		return invalid(function, "Step.CosSin must be nil: keys move by positions")
	}
	if step.Operation == OperationForward && !step.Unturned && !state.nope {
		return invalid(function, "Step.Operation (%v) must be another one, or Step.Unturned true: keys that have turned "+
			"would turn once more", step.Operation)
	}
	if step.Operation != OperationForward && step.Unturned {
		return invalid(function, "Step.Unturned (true) must be false with %v, which is for keys that have turned",
			step.Operation)
	}
	from, name := step.Source, "Step.Source"
	if from == nil {
		from, name = step.Slots, "Step.Slots"
	}
	var call C.ropego_move_call
	if err := step.check(function, &call.call, state); err != nil {
		return err
	}
	before, err := step.checkFrom(function, &call, state)
	if err != nil {
		return err
	}
	if source.V.Span || cache.V.Span {
		return invalid(function, "v does not turn, so it has no Span")
	}
	if err := source.checkVHeadDim(function, names.cache, false); err != nil {
		return err
	}
	if err := cache.checkVHeadDim(function, "KVCache", false); err != nil {
		return err
	}
	sourceK, sourceV, err := source.check(function, names, &call.source, state)
	if err != nil {
		return err
	}
	sourceKScales, sourceVScales, err := source.checkScales(function, names, &call.source_k_scale, &call.source_v_scale,
		state)
	if err != nil {
		return err
	}
	cacheK, cacheV, err := cache.check(function, &cacheNames, &call.cache, state)
	if err != nil {
		return err
	}
	kScales, vScales, err := cache.checkScales(function, &cacheNames, &call.k_scale, &call.v_scale, state)
	if err != nil {
		return err
	}
	if err := from.check(function, name, &call.source, step); err != nil {
		return err
	}
	if err := step.Slots.check(function, "Step.Slots", &call.cache, step); err != nil {
		return err
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return closed(function, "Step.Pool")
		}
	}
	to := step.Slots
	raw := C.ropego_move(state.ptr, &call, nil, nil, nil, nil, sourceK, sourceV, (*C.uint8_t)(from.numbers),
		(*C.int32_t)(unsafe.SliceData(from.pageStarts)), (*C.int32_t)(unsafe.SliceData(from.starts)), sourceKScales,
		sourceVScales, cacheK, cacheV, kScales, vScales, (*C.uint8_t)(to.numbers),
		(*C.int32_t)(unsafe.SliceData(to.pageStarts)), (*C.int32_t)(unsafe.SliceData(to.starts)),
		(*C.uint8_t)(step.Positions.ids),
		(*C.uint8_t)(before.Positions.ids), (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(before.CuSeqlens)), (*C.int32_t)(unsafe.SliceData(step.FreqSets)),
		(*C.int32_t)(unsafe.SliceData(before.FreqSets)), pool)
	if pool != nil {
		step.Pool.leave()
	}
	if raceEnabled && raw == nil {
		step.tellRace(state, false)
		before.tellRace(state, false)
		tellMove(source, cache, from, to, state, step)
	}
	return check(function, raw)
}

// rerotate is apply with OperationRerotate, of tensors.
func rerotate[Q, K Element](function string, state *contextState, q *Tensor[Q], k *Tensor[K], qOut *Tensor[Q],
	kOut *Tensor[K], step *Step) error {
	if step.CosSin != nil {
		return invalid(function, "Step.CosSin must be nil: keys move by positions")
	}
	var call C.ropego_move_call
	if err := step.check(function, &call.call, state); err != nil {
		return err
	}
	before, err := step.checkFrom(function, &call, state)
	if err != nil {
		return err
	}
	qData, qOutData, err := describe(function, "q", "qOut", q, qOut, &call.call.q, &call.call.q_out, state, step)
	if err != nil {
		return err
	}
	kData, kOutData, err := describe(function, "k", "kOut", k, kOut, &call.call.k, &call.call.k_out, state, step)
	if err != nil {
		return err
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return closed(function, "Step.Pool")
		}
	}
	raw := C.ropego_move(state.ptr, &call, qData, kData, qOutData, kOutData, nil, nil, nil, nil, nil, nil, nil,
		nil, nil, nil, nil, nil, nil, nil, (*C.uint8_t)(step.Positions.ids), (*C.uint8_t)(before.Positions.ids),
		(*C.int32_t)(unsafe.SliceData(step.CuSeqlens)), (*C.int32_t)(unsafe.SliceData(before.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(step.FreqSets)), (*C.int32_t)(unsafe.SliceData(before.FreqSets)), pool)
	if pool != nil {
		step.Pool.leave()
	}
	if raceEnabled && raw == nil {
		step.tellRace(state, false)
		before.tellRace(state, false)
		tellRace(q, qOut, nil, state, step)
		tellRace(k, kOut, nil, state, step)
	}
	return check(function, raw)
}

// checkFrom fills the positions before a move, and is a step that has them as its own.
func (step *Step) checkFrom(function string, call *C.ropego_move_call, c *contextState) (before Step, err error) {
	if step.Norms != nil {
		return before, unsupported(function, "Step.Norms must be nil: keys that move are not normed")
	}
	if (step.From != nil) != (step.Operation == OperationRerotate) {
		return before, invalid(function, "Step.From is required with OperationRerotate, and nil with any other")
	}
	if step.From == nil {
		return before, nil
	}
	before = Step{Batch: step.Batch, Tokens: step.Tokens, Positions: *step.From, CuSeqlens: step.CuSeqlens,
		FreqSets: step.FromFreqSets, BatchRepeat: step.BatchRepeat}
	if before.FreqSets == nil {
		before.FreqSets = step.FreqSets
	}
	if step.From.movesOn() {
		before.Shard = step.Shard
	} else if step.Shard.raw.scheme != 0 && step.CuSeqlens != nil {
		// They are those of all ranks, and a position of each token needs them for its set alone.
		before.CuSeqlens = nil
		if before.FreqSets != nil {
			if before.CuSeqlens, err = step.ownCuSeqlens(function); err != nil {
				return before, err
			}
		}
	}
	var filled C.ropego_call
	if err := before.checkAs(function, &fromNames, &filled, c); err != nil {
		return before, err
	}
	call.from = filled.positions
	return before, nil
}
