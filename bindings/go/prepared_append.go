package rope

/*
// The call keeps no pointer to a slice and calls nothing in Go.
#cgo noescape ropego_prepared_append
#cgo nocallback ropego_prepared_append
#include "shim.h"
*/
import "C"

import "runtime"

// PreparedAppend is one Append for the caches of many layers: positions, slots and shapes are the same for
// all layers of a step, and only the tensors and the pages lie elsewhere. They are checked once, and what is
// left to each layer is the rotation and the copies. The results are those of Append, bit for bit. Goroutines
// may use and close it as they may a [Prepared].
type PreparedAppend[Q, K, V Element] struct {
	handle handle[preparedAppendState[Q, K, V]]
}

// preparedAppendState is a prepared call, and what Apply checks the further slices by.
type preparedAppendState[Q, K, V Element] struct {
	preparedState[Q, K]
	v, vOut shape[V]
	keys    shape[K]
	values  shape[V]
	cache   KVCache[K, V] // without slices
	pages   Step          // KVCache.size
	slots   []int         // for the race detector
}

// PrepareAppend prepares the call that Append makes. Tensors and the memory of the cache have no slices,
// because Apply brings those of each layer:
//
//	cache := rope.KVCache[rope.BFloat16, rope.BFloat16]{
//		K: rope.NHD[rope.BFloat16](nil, 8), V: rope.NHD[rope.BFloat16](nil, 8), Pages: pages, PageSize: 16,
//	}
//	k := rope.BSHD[rope.BFloat16](nil, 8)
//	call, err := rope.PrepareAppend(ctx, rope.BSHD[rope.BFloat16](nil, 32), k, k, cache, step)
//	if err != nil { ... }
//	defer call.Close()
//	for _, layer := range layers {
//		if err := call.Apply(layer.q, layer.k, layer.v, layer.keys, layer.values); err != nil { ... }
//	}
//
// What may be the zero value for Append may be here. The slots of the step are read and checked now, as is all
// that the step points to: see [Prepare], whose rules are those of this call, too. Besides, it takes 24 bytes of C
// memory per token.
//
// The memory has the types of k and v. [PrepareCall] is for all others: codes of 8 bits, whose scales each layer
// brings, blocks of [Q80], and another of float32, half and bfloat16.
func PrepareAppend[Q, K, V Element](c *Context, q Tensor[Q], k Tensor[K], v Tensor[V], cache KVCache[K, V],
	step Step) (*PreparedAppend[Q, K, V], error) {
	return prepareAppend("PrepareAppend", c, &q, &k, &v, nil, nil, nil, &cache, &step)
}

// PrepareAppendTo prepares the call that AppendTo makes, for ApplyTo.
func PrepareAppendTo[Q, K, V Element](c *Context, qOut Tensor[Q], kOut Tensor[K], vOut Tensor[V], q Tensor[Q],
	k Tensor[K], v Tensor[V], cache KVCache[K, V], step Step) (*PreparedAppend[Q, K, V], error) {
	return prepareAppend("PrepareAppendTo", c, &q, &k, &v, &qOut, &kOut, &vOut, &cache, &step)
}

func prepareAppend[Q, K, V Element](function string, c *Context, q *Tensor[Q], k *Tensor[K], v *Tensor[V],
	qOut *Tensor[Q], kOut *Tensor[K], vOut *Tensor[V], cache *KVCache[K, V], step *Step) (
	*PreparedAppend[Q, K, V], error) {
	if err := checkStores(function, k, kOut, cache, step); err != nil {
		return nil, err
	}
	if err := cache.checkUnscaled(function); err != nil {
		return nil, err
	}
	b := new(body[preparedAppendState[Q, K, V]])
	state := &b.value
	var call C.ropego_append_call
	err := state.create(function, c, q, k, qOut, kOut, step, &call, nil, func(context *contextState) error {
		return state.describe(function, v, vOut, cache, &call, context, step)
	})
	if err != nil {
		return nil, err
	}
	if raceEnabled {
		state.slots = step.Slots.of(step, cache.PageSize)
	}
	p := new(PreparedAppend[Q, K, V])
	p.handle.set(b, (*preparedAppendState[Q, K, V]).destroy,
		runtime.AddCleanup(b, preparedMemory.free, state.memory))
	return p, nil
}

// describe fills the C tensors and the shapes of v, its output and the cache.
func (s *preparedAppendState[Q, K, V]) describe(function string, v, vOut *Tensor[V], cache *KVCache[K, V],
	call *C.ropego_append_call, c *contextState, step *Step) error {
	hasV, hasVOut := given(v, vOut)
	if hasV && cache.V.lacksHeads() {
		return invalid(function, "KVCache.V.Heads (0) must be positive")
	}
	if err := cache.checkVHeadDim(function, "KVCache", hasV || hasVOut); err != nil {
		return err
	}
	dim := cache.vDim(c)
	if hasV {
		if err := s.v.set(function, "v", v, &call.v, dim, step); err != nil {
			return err
		}
		call.v.head_dim = C.int32_t(dim)
	}
	if hasVOut {
		if err := s.vOut.set(function, "vOut", vOut, &call.v_out, dim, step); err != nil {
			return err
		}
		call.v_out.head_dim = C.int32_t(dim)
	}
	if err := checkSpans(function, v, vOut, cache.V.Span); err != nil {
		return err
	}
	if err := fillPages(function, "KVCache", cache.Pages, cache.PageSize, &call.cache); err != nil {
		return err
	}
	s.cache, s.pages = *cache, cache.size()
	s.keys.pages, s.values.pages = true, true
	idle := step.Batch == 0 || step.Tokens == 0
	s.keys.optional, s.values.optional = idle, idle
	if !cache.K.empty() {
		err := s.keys.set(function, "KVCache.K", &cache.K, &call.cache.k, cache.K.channels(c), &s.pages)
		if err != nil {
			return err
		}
	}
	if !cache.V.empty() {
		if err := s.values.set(function, "KVCache.V", &cache.V, &call.cache.v, dim, &s.pages); err != nil {
			return err
		}
		call.cache.v.head_dim = C.int32_t(dim)
	}
	return step.Slots.check(function, "Step.Slots", &call.cache, step)
}

// Close gives the prepared call up, as [Prepared.Close] does.
func (p *PreparedAppend[Q, K, V]) Close() error {
	p.ref().close()
	return nil
}

// ref is the handle, which nil has not.
func (p *PreparedAppend[Q, K, V]) ref() *handle[preparedAppendState[Q, K, V]] {
	if p == nil {
		return nil
	}
	return &p.handle
}

// Apply rotates q in place, and stores the rotated k, and v, in the pages of one layer: slices as long as
// their descriptions say, nil for one that the call does not have. A call without tokens needs no pages. It
// allocates nothing.
func (p *PreparedAppend[Q, K, V]) Apply(q []Q, k []K, v []V, keys []K, values []V) error {
	return p.apply("PreparedAppend.Apply", nil, nil, nil, q, k, v, keys, values)
}

// ApplyTo is Apply, and writes to the outputs that the call has, under the rules of AppendTo.
func (p *PreparedAppend[Q, K, V]) ApplyTo(qOut []Q, kOut []K, vOut []V, q []Q, k []K, v []V, keys []K,
	values []V) error {
	return p.apply("PreparedAppend.ApplyTo", qOut, kOut, vOut, q, k, v, keys, values)
}

func (p *PreparedAppend[Q, K, V]) apply(function string, qOut []Q, kOut []K, vOut []V, q []Q, k []K, v []V,
	keys []K, values []V) error {
	use, open := p.ref().enter()
	if !open {
		return closed(function, "the prepared call p")
	}
	defer use.leave()
	state := &use.body.value
	if state.sizes.Batch == 0 && state.sizes.Tokens > 0 && len(q)|len(k)|len(v) != 0 {
		return state.sizes.noBatch(function)
	}
	qData, err := state.q.address(function, "q", q, &state.sizes)
	if err != nil {
		return err
	}
	kData, err := state.k.address(function, "k", k, &state.sizes)
	if err != nil {
		return err
	}
	vData, err := state.v.address(function, "v", v, &state.sizes)
	if err != nil {
		return err
	}
	qOutData, err := state.qOut.address(function, "qOut", qOut, &state.sizes)
	if err != nil {
		return err
	}
	kOutData, err := state.kOut.address(function, "kOut", kOut, &state.sizes)
	if err != nil {
		return err
	}
	vOutData, err := state.vOut.address(function, "vOut", vOut, &state.sizes)
	if err != nil {
		return err
	}
	keysData, err := state.keys.address(function, "keys", keys, &state.pages)
	if err != nil {
		return err
	}
	valuesData, err := state.values.address(function, "values", values, &state.pages)
	if err != nil {
		return err
	}
	if state.pool != nil {
		if state.pool.enter() == nil {
			return closed(function, "the Step.Pool of the prepared call")
		}
		defer state.pool.leave()
	}
	raw := C.ropego_prepared_append(state.memory.ptr, qData, kData, vData, qOutData, kOutData, vOutData, keysData,
		valuesData)
	if raceEnabled && raw == nil {
		context := &state.memory.context.body.value
		cache := state.cache
		cache.K, cache.V = *state.keys.with(keys), *state.values.with(values)
		tellRace(state.q.with(q), state.qOut.with(qOut), nil, context, &state.sizes)
		tellStores(&cache, state.k.with(k), state.kOut.with(kOut), state.v.with(v), state.vOut.with(vOut), state.slots,
			context, &state.sizes)
	}
	return check(function, raw)
}
