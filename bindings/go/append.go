package rope

/*
// The call keeps no pointer to a slice and calls nothing in Go.
#cgo noescape ropego_append
#cgo nocallback ropego_append
#include "shim.h"
*/
import "C"

import (
	"math"
	"strings"
	"unsafe"
)

// KVCache is the cache of one layer: pages of slots, each of which holds the heads of one token. Which
// slots the tokens of a call go to belongs to the Step. Contiguous slices must have exactly Pages *
// PageSize slots.
//
// With one page for each sequence, as LinearSlots has it, LayoutNHD is [sequences, length, heads,
// channels].
type KVCache[K, V OutputElement] struct {
	// NHD, HND, or Strided, whose Strides.Batch leads from page to page, and Strides.Token from slot to
	// slot; the zero value for none. K and V have the heads of the call's k and v, and may lie in one
	// buffer, as long as they do not overlap. Elements of another type than those of the call's k or v are
	// rounded once.
	K Tensor[K]
	V Tensor[V]

	KScale, VScale *Scale // required by codes of 8 bits in K or V, otherwise nil; prepared by PrepareCall

	Pages, PageSize int // required
	VHeadDim        int // channels of a head of v, here or in the call: 1 to 1024; 0: those of the context
}

// NHD is the memory of a cache, contiguous [pages, page_size, heads, channels].
func NHD[T OutputElement](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutNHD, Heads: heads}
}

// HND is the memory of a cache, contiguous [pages, heads, page_size, channels].
func HND[T OutputElement](data []T, heads int) Tensor[T] {
	return Tensor[T]{Data: data, Layout: LayoutHND, Heads: heads}
}

// Append rotates q in place, and stores the rotated k, and v, in the slots of the cache that Step.Slots
// names. k and v are only read. Each of the three may be the zero value, but not both q and k. What reaches
// the slots has the bits that ApplyQK would write; with ScalingNope k is stored as it is.
func Append[Q, K, V Element, CK, CV OutputElement](c *Context, q Tensor[Q], k Tensor[K], v Tensor[V],
	cache KVCache[CK, CV], step Step) error {
	return store("Append", c, &q, &k, &v, nil, nil, nil, &cache, &step)
}

// AppendTo is Append, and rotates q into qOut and k into kOut, and copies v to vOut, under the rules of
// ApplyQKTo. The zero value as qOut rotates q in place; as kOut or vOut it is no output.
func AppendTo[Q, K, V Element, CK, CV OutputElement](c *Context, qOut Tensor[Q], kOut Tensor[K], vOut Tensor[V],
	q Tensor[Q], k Tensor[K], v Tensor[V], cache KVCache[CK, CV], step Step) error {
	return store("AppendTo", c, &q, &k, &v, &qOut, &kOut, &vOut, &cache, &step)
}

func store[Q, K, V Element, CK, CV OutputElement](function string, c *Context, q *Tensor[Q], k *Tensor[K],
	v *Tensor[V], qOut *Tensor[Q], kOut *Tensor[K], vOut *Tensor[V], cache *KVCache[CK, CV], step *Step) error {
	use, err := c.forSlices(function)
	if err != nil {
		return err
	}
	defer use.leave()
	state := &use.body.value
	if step.Batch == 0 && step.Tokens > 0 && len(q.Data)|len(k.Data)|len(v.Data) != 0 {
		return step.noBatch(function)
	}
	if err := checkStores(function, k, kOut, cache, step); err != nil {
		return err
	}
	return storeIn(function, state, q, k, v, qOut, kOut, vOut, cache, step)
}

// storeIn makes a call that does more than rotate; cache may be nil.
func storeIn[Q, K, V Element, CK, CV OutputElement](function string, state *contextState, q *Tensor[Q],
	k *Tensor[K], v *Tensor[V], qOut *Tensor[Q], kOut *Tensor[K], vOut *Tensor[V], cache *KVCache[CK, CV],
	step *Step) error {
	var call C.ropego_append_call
	if err := step.check(function, &call.call, state); err != nil {
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
	var vData, vOutData, cacheK, cacheV *C.uint8_t
	slots := &Slots{}
	if cache != nil {
		if vData, vOutData, err = values(function, v, vOut, cache, &call, state, step); err != nil {
			return err
		}
		if cacheK, cacheV, err = cache.check(function, &cacheNames, &call.cache, state); err != nil {
			return err
		}
		slots = step.Slots
		if err := slots.check(function, "Step.Slots", &call.cache, step); err != nil {
			return err
		}
	}
	var kScales, vScales *C.uint8_t
	scaled := cache != nil && (cache.KScale != nil || cache.VScale != nil)
	var fused *C.ropego_fused // on the heap, which calls without norms and scales do not ask for
	if scaled || step.Norms != nil {
		fused = new(C.ropego_fused)
	}
	if scaled {
		kScales, vScales, err = cache.checkScales(function, &cacheNames, &fused.k_scale, &fused.v_scale, state)
		if err != nil {
			return err
		}
	}
	var norms [3]normData
	if step.Norms != nil {
		tensors := Call{Q: q.Any(), K: k.Any(), V: v.Any()}
		if qOut != nil {
			tensors.QOut = qOut.Any()
		}
		if kOut != nil {
			tensors.KOut = kOut.Any()
		}
		if cache != nil {
			tensors.V.headDim = cache.vDim(state)
		}
		if norms, err = tensors.checkNorms(function, fused, state, step); err != nil {
			return err
		}
	}
	var cos, sin *C.uint8_t
	if rows := step.CosSin; rows != nil {
		if err := rows.check(function, &call.call.rows, state, step, false); err != nil {
			return err
		}
		cos, sin = (*C.uint8_t)(rows.data), (*C.uint8_t)(rows.sin)
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return closed(function, "Step.Pool")
		}
	}
	numbers, pageStarts := (*C.uint8_t)(slots.numbers), (*C.int32_t)(unsafe.SliceData(slots.pageStarts))
	starts, ids := (*C.int32_t)(unsafe.SliceData(slots.starts)), (*C.uint8_t)(step.Positions.ids)
	cuSeqlens, freqSets := (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)), (*C.int32_t)(unsafe.SliceData(step.FreqSets))
	var raw *C.ropego_error
	if step.Norms == nil && !scaled {
		raw = C.ropego_append(state.ptr, &call, qData, kData, vData, qOutData, kOutData, vOutData, cacheK, cacheV,
			numbers, pageStarts, starts, ids, cuSeqlens, freqSets, cos, sin, pool)
	} else {
		arrays := fusedArrays{q: qData, k: kData, v: vData, qOut: qOutData, kOut: kOutData, vOut: vOutData, cacheK: cacheK,
			cacheV: cacheV, kScales: kScales, vScales: vScales, cos: cos, sin: sin, norms: norms}
		raw = arrays.apply(state, &call, fused, step, slots, pool)
	}
	if pool != nil {
		step.Pool.leave()
	}
	if raceEnabled && raw == nil {
		step.tellRace(state, false)
		tellRace(q, qOut, step.Norms.q(), state, step)
		if cache != nil {
			tellStores(cache, k, kOut, v, vOut, step.Slots.of(step, cache.PageSize), state, step)
		} else {
			tellRace(k, kOut, step.Norms.k(), state, step)
		}
	}
	return check(function, raw)
}

// checkStores checks that the step has slots, and k a place to go.
func checkStores[K Element, CK, CV OutputElement](function string, k, kOut *Tensor[K], cache *KVCache[CK, CV],
	step *Step) error {
	if step.Slots == nil {
		return invalid(function, "Step.Slots is required: MappedSlots, PagedSlots or another of its kind")
	}
	if step.Source != nil || step.From != nil {
		return step.noMove(function)
	}
	if step.Unturned {
		return step.noUnturned(function)
	}
	hasK, hasKOut := given(k, kOut)
	if hasK && cache.K.lacksHeads() {
		return invalid(function, "KVCache.K.Heads (0) must be positive")
	}
	if hasK && !hasKOut && cache.K.empty() {
		return invalid(function, "k has no place to go: KVCache.K, or an output")
	}
	return nil
}

// values fills the C tensors of v and its output, whose width is their own.
func values[V Element, CK, CV OutputElement](function string, v, out *Tensor[V], cache *KVCache[CK, CV],
	call *C.ropego_append_call, c *contextState, step *Step) (data, outData *C.uint8_t, err error) {
	hasIn, hasOut := given(v, out)
	if hasIn && cache.V.lacksHeads() {
		return nil, nil, invalid(function, "KVCache.V.Heads (0) must be positive")
	}
	if err := cache.checkVHeadDim(function, "KVCache", hasIn || hasOut); err != nil {
		return nil, nil, err
	}
	dim := cache.vDim(c)
	if hasIn {
		if data, err = v.checkWide(function, "v", &call.v, dim, step); err != nil {
			return nil, nil, err
		}
		call.v.head_dim = C.int32_t(dim)
	}
	if hasOut {
		if outData, err = out.checkWide(function, "vOut", &call.v_out, dim, step); err != nil {
			return nil, nil, err
		}
		call.v_out.head_dim = C.int32_t(dim)
	}
	return data, outData, checkSpans(function, v, out, cache.V.Span)
}

// checkSpans refuses v, or an output or memory of it, with a Span.
func checkSpans[V Element](function string, v, out *Tensor[V], stored bool) error {
	if v.Span || stored || out != nil && out.Span {
		return invalid(function, "v does not turn, so it has no Span")
	}
	return nil
}

// checkVHeadDim refuses channels that no head has, and those of v where there is none: neither memory, nor v of the
// call.
func (cache *KVCache[K, V]) checkVHeadDim(function, name string, hasV bool) error {
	if cache.VHeadDim < 0 || cache.VHeadDim > 1024 {
		return invalid(function, "%s.VHeadDim (%d) must be from 1 to 1024, or 0 for that of the context", name,
			cache.VHeadDim)
	}
	if cache.VHeadDim != 0 && cache.V.empty() && !hasV {
		return invalid(function, "%s.VHeadDim (%d) must be 0 without %s.V and v", name, cache.VHeadDim, name)
	}
	return nil
}

// vDim is how many channels a head of v has.
func (cache *KVCache[K, V]) vDim(c *contextState) int {
	if cache.VHeadDim != 0 {
		return cache.VHeadDim
	}
	return c.info.HeadDim
}

// memoryNames are those of the memory of a cache in messages.
type memoryNames struct{ cache, k, v, kScale, vScale string }

var (
	cacheNames = memoryNames{"KVCache", "KVCache.K", "KVCache.V", "KVCache.KScale", "KVCache.VScale"}
	// Of MoveBetween.
	sourceNames = memoryNames{"source", "source.K", "source.V", "source.KScale", "source.VScale"}
)

// check fills the C cache after checking that every slot of it lies inside its slices.
func (cache *KVCache[K, V]) check(function string, names *memoryNames, raw *C.ropego_cache, c *contextState) (
	k, v *C.uint8_t, err error) {
	if err := fillPages(function, names.cache, cache.Pages, cache.PageSize, raw); err != nil {
		return nil, nil, err
	}
	if !cache.K.empty() {
		if k, err = pagesOf(function, names.k, &cache.K, &raw.k, cache.K.channels(c), cache.size()); err != nil {
			return nil, nil, err
		}
	}
	if !cache.V.empty() {
		if v, err = pagesOf(function, names.v, &cache.V, &raw.v, cache.vDim(c), cache.size()); err != nil {
			return nil, nil, err
		}
		raw.v.head_dim = C.int32_t(cache.vDim(c))
	}
	return k, v, nil
}

// fillPages writes pages and page size of the cache of this name; what C can hold, the library checks.
func fillPages(function, name string, pages, pageSize int, raw *C.ropego_cache) error {
	if pageSize > math.MaxInt32 {
		return invalid(function, "%s.PageSize (%d) must be from 1 to 1073741824", name, pageSize)
	}
	raw.pages, raw.page_size = C.int64_t(pages), C.int32_t(max(math.MinInt32, pageSize))
	return nil
}

// size are pages and slots in the places of batch rows and tokens.
func (cache *KVCache[K, V]) size() Step { return Step{Batch: cache.Pages, Tokens: cache.PageSize} }

// checkPages refuses a cache, of whose memory this is the name, without pages or slots: one that was forgotten.
func checkPages(function, name string, size *Step) error {
	cache, _, _ := strings.Cut(name, ".")
	if size.Batch <= 0 {
		return invalid(function, "%s.Pages (%d) is required, and must be positive", cache, size.Batch)
	}
	if size.Tokens <= 0 {
		return invalid(function, "%s.PageSize (%d) is required, and must be from 1 to 1073741824", cache, size.Tokens)
	}
	return nil
}

func pagesOf[T OutputElement](function, name string, t *Tensor[T], raw *C.ropego_tensor, dim int, size Step) (
	*C.uint8_t, error) {
	n, good := t.elements(dim, &size)
	// A slice has more bytes than channels.
	if dtype := dtypeOf[T](); !good || !t.Layout.holds(n, len(t.Data)*dtype.channels()) {
		if err := checkPages(function, name, &size); err != nil {
			return nil, err
		}
		return nil, t.Layout.misfit(function, t.words(name, dim, &size, true), n, good, len(t.Data), dtype)
	}
	t.fill(raw, dim)
	return (*C.uint8_t)(addressOf(t.Data)), nil
}
