package rope

/*
// The call keeps no pointer to a slice and calls nothing in Go.
#cgo noescape ropego_prepared_call
#cgo nocallback ropego_prepared_call
#include "shim.h"
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// PreparedCall is one [Call] for the memory of many layers: shapes, positions and slots are the same, and only the
// slices lie elsewhere. The results are those of Apply, bit for bit. Goroutines may use and close it as they may a
// [Prepared], which like [PreparedAppend] is its form for tensors that need no scales.
type PreparedCall struct {
	handle handle[preparedCallState]
}

// Layer is the memory of one layer, for [PreparedCall.Apply]: an array for each tensor of the call, for the
// memory of its cache, for those scales that are arrays, and for what its norms read.
type Layer struct {
	Q, QOut, K, KOut, V, VOut, Rest, RestOut          Array
	CacheK, CacheV                                    Array
	QOutScales, KOutScales, VOutScales, RestOutScales Array
	CacheKScales, CacheVScales                        Array
	QNormWeight, QNormBias, QNormRstd                 Array
	KNormWeight, KNormBias, KNormRstd                 Array
	VNormWeight, VNormBias, VNormRstd                 Array
}

// layerArrays is how many a layer may have.
const layerArrays = 29

// arrays are those of a layer, in the order of Call.parts, behind them their scales, and those of norms.
func (l *Layer) arrays() [layerArrays]*Array {
	return [layerArrays]*Array{&l.Q, &l.QOut, &l.K, &l.KOut, &l.V, &l.VOut, &l.Rest, &l.RestOut, &l.CacheK, &l.CacheV,
		11: &l.QOutScales, 13: &l.KOutScales, 15: &l.VOutScales, 17: &l.RestOutScales, 18: &l.CacheKScales,
		19: &l.CacheVScales, 20: &l.QNormWeight, 21: &l.QNormBias, 22: &l.QNormRstd, 23: &l.KNormWeight,
		24: &l.KNormBias, 25: &l.KNormRstd, 26: &l.VNormWeight, 27: &l.VNormBias, 28: &l.VNormRstd}
}

// layerNames are how messages call them.
var layerNames = [layerArrays]string{"Q", "QOut", "K", "KOut", "V", "VOut", "Rest", "RestOut", "CacheK", "CacheV",
	11: "QOutScales", 13: "KOutScales", 15: "VOutScales", 17: "RestOutScales", 18: "CacheKScales", 19: "CacheVScales",
	20: "QNormWeight", 21: "QNormBias", 22: "QNormRstd", 23: "KNormWeight", 24: "KNormBias", 25: "KNormRstd",
	26: "VNormWeight", 27: "VNormBias", 28: "VNormRstd"}

// place is what the array of a layer has to be; of one that the call does not have, the zero value.
type place struct {
	present, exact bool
	elements       uint64
	dtype          DType
}

type preparedCallState struct {
	memory preparedMemory
	pool   *Pool
	places [layerArrays]place
	call   Call // without slices, for the race detector
	step   Step // its Batch and Tokens, and which norms it has
	slots  []int
}

func (s *preparedCallState) destroy() { s.memory.free() }

// PrepareCall prepares the call that Apply makes. Tensors and the memory of the cache have no slices, because a
// Layer brings them; an array of scales is described by an empty slice that is not nil. One scale of each layer is an
// array of one, whose strides are 0:
//
//	codes := rope.NHD[rope.F8E4M3](nil, 8).Any().WithScale(&rope.Scale{Data: []float32{}, Strides: &rope.Strides{}})
//	call, err := rope.PrepareCall(ctx, rope.Call{
//		Q: rope.BSHD[rope.BFloat16](nil, 32).Any(), K: rope.BSHD[rope.BFloat16](nil, 8).Any(),
//		Cache: &rope.Cache{K: codes, Pages: pages, PageSize: 16},
//	}, step)
//	if err != nil { ... }
//	defer call.Close()
//	for _, layer := range layers {
//		err := call.Apply(rope.Layer{Q: rope.ArrayOf(layer.q), K: rope.ArrayOf(layer.k),
//			CacheK: rope.ArrayOf(layer.keys), CacheKScales: rope.ArrayOf([]float32{layer.kScale})})
//		if err != nil { ... }
//	}
//
// The norms of the step are described without arrays, which a Layer brings, too: an empty slice as Weight tells the
// element type, and Bias and Rstd are left out (or empty, where the norm has them). Qwen3's are
//
//	norm := &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: rope.ArrayOf([]rope.BFloat16{})}
//	step.Norms = &rope.Norms{Q: norm, K: norm}
//
// The rules of [Prepare] are those of this call, too.
func PrepareCall(c *Context, call Call, step Step) (p *PreparedCall, err error) {
	const function = "PrepareCall"
	use, err := c.forSlices(function)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			use.leave()
		}
	}()
	context := &use.body.value
	if err := call.checkStep(function, &step); err != nil {
		return nil, err
	}
	b := new(body[preparedCallState])
	state := &b.value
	var raw C.ropego_append_call
	var fused C.ropego_fused
	if err := step.check(function, &raw.call, context); err != nil {
		return nil, err
	}
	if err := call.Cache.fill(function, &raw.cache); err != nil {
		return nil, err
	}
	parts := call.parts(&raw, &fused)
	for i := range parts {
		if parts[i].absent() {
			if err := parts[i].checkNone(function); err != nil {
				return nil, err
			}
			continue
		}
		if err := state.describe(function, i, &parts[i], &call, context, &step); err != nil {
			return nil, err
		}
	}
	if step.Norms != nil {
		if err := state.describeNorms(function, &call, &fused, context, &step); err != nil {
			return nil, err
		}
	}
	slots := &Slots{}
	if call.Cache != nil {
		slots = step.Slots
		if err := slots.check(function, "Step.Slots", &raw.cache, &step); err != nil {
			return nil, err
		}
	}
	var cos, sin *C.uint8_t
	if rows := step.CosSin; rows != nil {
		if err := rows.check(function, &raw.call.rows, context, &step, false); err != nil {
			return nil, err
		}
		cos, sin = (*C.uint8_t)(rows.data), (*C.uint8_t)(rows.sin)
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return nil, closed(function, "Step.Pool")
		}
		defer step.Pool.leave()
	}
	failed := C.ropego_prepared_create(context.ptr, &raw, &fused, (*C.uint8_t)(slots.numbers),
		(*C.int32_t)(unsafe.SliceData(slots.pageStarts)), (*C.int32_t)(unsafe.SliceData(slots.starts)),
		(*C.uint8_t)(step.Positions.ids), (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(step.FreqSets)), cos, sin, pool, &state.memory.ptr)
	if err := check(function, failed); err != nil {
		return nil, err
	}
	state.memory.context, state.pool = use, step.Pool.kept()
	state.call, state.step = call, Step{Batch: step.Batch, Tokens: step.Tokens}
	if step.Norms != nil {
		norms := *step.Norms
		state.step.Norms = &norms
	}
	if call.Cache != nil {
		cache := *call.Cache
		state.call.Cache = &cache
	}
	if raceEnabled {
		for _, p := range state.call.parts(&raw, &fused) {
			p.tensor.scale = p.tensor.scale.kept()
		}
		step.tellRace(context, false)
		if call.Cache != nil {
			state.slots = step.Slots.of(&step, call.Cache.PageSize)
		}
	}
	p = new(PreparedCall)
	p.handle.set(b, (*preparedCallState).destroy, runtime.AddCleanup(b, preparedMemory.free, state.memory))
	return p, nil
}

// describe fills the C tensor of a part, and what its arrays have to be.
func (s *preparedCallState) describe(function string, i int, p *part, call *Call, c *contextState, step *Step) error {
	t := p.tensor
	if t.len != 0 {
		return invalid(function, "%s (%d elements) must be nil: slices come with each Layer", p.name, t.len)
	}
	if err := p.checkRules(function); err != nil {
		return err
	}
	dim, sizes := t.channels(c), p.sizes(call, step)
	n, good := t.form.elements(dim, sizes)
	if !good {
		return invalid(function, "%s fits no slice", t.form.words(p.name, dim, sizes, p.pages))
	}
	each := uint64(t.dtype.channels())
	elements := n / each
	if n%each != 0 {
		elements++
	}
	s.places[i] = place{true, t.form.Layout != LayoutStrided, elements, t.dtype}
	t.form.fill(p.raw, dim)
	p.raw.dtype = C.int32_t(t.dtype)
	if p.plain {
		p.raw.head_dim = C.int32_t(dim)
	}
	if t.scale == nil {
		return nil
	}
	if len(t.scale.Data)+len(t.scale.E8M0) != 0 {
		return invalid(function, "%s.Scale has an array of %d, which must be empty: arrays come with each Layer", p.name,
			len(t.scale.Data)+len(t.scale.E8M0))
	}
	if t.scale.Data == nil && t.scale.E8M0 == nil {
		_, err := checkScale(function, p.name+".Scale", t.scale, p.scale, t.form.Layout, t.form.Heads, dim, *sizes)
		return err
	}
	return s.describeScales(function, i, p, dim, *sizes)
}

// describeScales is describe of an array of scales.
func (s *preparedCallState) describeScales(function string, i int, p *part, dim int, sizes Step) error {
	scale, layout, heads := *p.tensor.scale, p.tensor.form.Layout, p.tensor.form.Heads
	dtype := DTypeF32
	if scale.E8M0 != nil {
		dtype = DTypeE8M0
	}
	// Of no tokens: there is nothing to check of the array itself.
	if _, err := checkScale(function, p.name+".Scale", &scale, p.scale, layout, heads, dim, Step{}); err != nil {
		return err
	}
	groups := scale.groups(dim)
	n, good := scale.needs(heads, groups, sizes)
	if !good {
		return invalid(function, "%s.Scale fits no slice", p.name)
	}
	scale.setStrides(p.scale, layout, heads, groups, sizes)
	s.places[10+i] = place{true, scale.Strides == nil, n, dtype}
	return nil
}

// describeNorms is describe of norms.
func (s *preparedCallState) describeNorms(function string, call *Call, fused *C.ropego_fused, c *contextState,
	step *Step) error {
	for i, n := range call.normed(fused, step) {
		norm := n.of
		if norm == nil {
			continue
		}
		if norm.Weight.len+norm.Bias.len+len(norm.Rstd) != 0 {
			return invalid(function, "Norms.%s has arrays, which must be empty: arrays come with each Layer", n.name)
		}
		if err := norm.checkUnread(function, n.name); err != nil {
			return err
		}
		if err := norm.checkTypes(function, n.name); err != nil {
			return err
		}
		if err := norm.checkX(function, n.name); err != nil {
			return err
		}
		if !norm.X.empty() || norm.WeightGrad != nil || norm.BiasGrad != nil || norm.GradParts != 0 {
			return invalid(function, "Norms.%s must have no X, WeightGrad, BiasGrad and GradParts: prepared calls have no "+
				"gradients of norms", n.name)
		}
		channels := n.tensor.channels(c)
		rows := norm.describe(n.raw, n.tensor.form.Heads, channels)
		places := norm.places(rows, channels, step)
		copy(s.places[20+3*i:], places[:])
	}
	return nil
}

// Close gives the prepared call up, as [Prepared.Close] does.
func (p *PreparedCall) Close() error {
	p.ref().close()
	return nil
}

// ref is the handle, which nil has not.
func (p *PreparedCall) ref() *handle[preparedCallState] {
	if p == nil {
		return nil
	}
	return &p.handle
}

// Apply makes the call for the memory of one layer: arrays of the types and lengths that were described, and the
// zero value for those that were not. A call without tokens needs none.
func (p *PreparedCall) Apply(layer Layer) error {
	const function = "PreparedCall.Apply"
	use, open := p.ref().enter()
	if !open {
		return closed(function, "the prepared call p")
	}
	defer use.leave()
	state := &use.body.value
	if state.step.Batch == 0 && state.step.Tokens > 0 && layer.Q.len|layer.K.len|layer.V.len|layer.Rest.len != 0 {
		return state.step.noBatch(function)
	}
	idle := state.step.Batch == 0 || state.step.Tokens == 0 // C looks at no array
	var at [layerArrays]*C.uint8_t
	for i, array := range layer.arrays() {
		if array == nil || array.len == 0 && idle {
			continue
		}
		if err := state.places[i].check(function, layerNames[i], array); err != nil {
			return err
		}
		if state.places[i].elements != 0 {
			at[i] = (*C.uint8_t)(array.data)
		}
	}
	if state.pool != nil {
		if state.pool.enter() == nil {
			return closed(function, "the Step.Pool of the prepared call")
		}
		defer state.pool.leave()
	}
	raw := C.ropego_prepared_call(state.memory.ptr, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[11], at[13],
		at[15], at[17], at[8], at[9], at[18], at[19], at[20], at[21], at[22], at[23], at[24], at[25], at[26], at[27], at[28])
	if raceEnabled && raw == nil {
		state.tellRace(&layer)
	}
	return check(function, raw)
}

// check checks that an array is one that was described.
func (p *place) check(function, name string, array *Array) error {
	switch n := uint64(array.len); {
	case !p.present && array.len != 0:
		return invalid(function, "%s (%d elements) must be nil: the prepared call has no %s", name, array.len, name)
	case n < p.elements || n > p.elements && p.exact:
		return invalid(function, "%s has %d elements, and the prepared call needs %d", name, array.len, p.elements)
	case p.present && array.len != 0 && array.dtype != p.dtype:
		return invalid(function, "%s has elements of %v, and the prepared call needs %v", name, array.dtype, p.dtype)
	}
	return nil
}

// tellRace reports what a call has read and written.
func (s *preparedCallState) tellRace(layer *Layer) {
	call, arrays := s.call, layer.arrays()
	if call.Cache != nil {
		cache := *call.Cache
		call.Cache = &cache
	}
	var raw C.ropego_append_call
	var fused C.ropego_fused
	for i, p := range call.parts(&raw, &fused) {
		p.tensor.Array = *arrays[i]
		if scales := arrays[10+i]; scales != nil && scales.data != nil && p.tensor.scale != nil {
			scale := *p.tensor.scale
			if scales.dtype == DTypeF32 {
				scale.Data = unsafe.Slice((*float32)(scales.data), scales.len)
			} else {
				scale.E8M0 = unsafe.Slice((*uint8)(scales.data), scales.len)
			}
			p.tensor.scale = &scale
		}
	}
	for _, array := range arrays[20:] {
		raceRead(array.data, uint64(array.len)*array.bytes)
	}
	call.tellParts(&s.memory.context.body.value, &s.step, s.slots)
}
