package rope

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// Scale is what the codes of K or V of a KVCache, or of an output of a Call, in 8 bits stand for: value = code *
// scale. It has one of Value, Data and E8M0.
//
//	cache := rope.KVCache[rope.F8E4M3, rope.F8E4M3]{
//		K: rope.NHD(keys, 8), KScale: &rope.Scale{Value: 0.02},
//		V: rope.NHD(values, 8), VScale: &rope.Scale{Data: scales, Computed: true},
//		Pages: pages, PageSize: 16,
//	}
type Scale struct {
	Value float32 // one for all, given: 2^-126 to 2^126

	// A scale of each head, or group of its channels. The array has the layout of its codes, with groups in place of
	// channels: [batch, tokens, heads, groups] for BSHD, [batch, heads, tokens, groups] for BHSD, [tokens, batch, heads,
	// groups] for SBHD; of K or V of a cache [pages, page_size, heads, groups] for NHD, [pages, heads, page_size, groups]
	// for HND. Strided codes have no order of their own: theirs is that for BSHD or NHD.
	Data []float32
	E8M0 []uint8 // the same as powers of two, of which the exponent is kept: 2^(byte - 127)
	// How Data or E8M0 lie, from their first scale on; nil: contiguous, in the order above. Those of a head are adjacent;
	// 0 shares one that is given.
	Strides *Strides

	// Data or E8M0 are written, for what the call stores; otherwise they are given.
	//
	//	scale = max(largest size in the group / MAX, MinScale), up to a power of two if asked for
	//
	// MAX is 448 (F8E4M3), 57344 (F8E5M2) or 127 (int8).
	Computed bool

	Group      int     // adjacent channels that share a scale, a divisor of those of a head; 0: all of a head
	PowerOfTwo bool    // computed scales are rounded up to a power of two, as E8M0 requires
	MinScale   float64 // computed scales are never smaller, before they are rounded: 2^-126 to 2^126; 0: 2^-126
	RoundFirst bool    // results are rounded to the type of k or v first, as two kernels would do
}

// checkScale fills the C scale of an output, or of a cache's memory, after checking that its array is that of the
// tensor.
func checkScale(function, name string, s *Scale, raw *C.ropego_scale, layout Layout, heads, dim int, size Step) (
	*C.uint8_t, error) {
	if s == nil {
		return nil, nil
	}
	if s.Data != nil && s.E8M0 != nil {
		return nil, invalid(function, "%s.Data and E8M0: one of them must be nil", name)
	}
	if s.Group < 0 || s.Group > math.MaxInt32 || s.Group != 0 && dim%s.Group != 0 {
		return nil, invalid(function, "%s.Group (%d) must divide the channels of a head (%d)", name, s.Group, dim)
	}
	raw.given = 1
	raw.value, raw.group, raw.min_scale = C.float(s.Value), C.int32_t(s.Group), C.double(s.MinScale)
	raw.computed, raw.power_of_two, raw.round_first = number(s.Computed), number(s.PowerOfTwo), number(s.RoundFirst)
	if s.Data == nil && s.E8M0 == nil {
		if s.Strides != nil {
			return nil, invalid(function, "%s.Strides must be nil: they are those of Data or E8M0", name)
		}
		return nil, nil
	}
	field, length, data := "Data", len(s.Data), addressOf(s.Data)
	raw.dtype = C.ROPE_DTYPE_F32
	if s.E8M0 != nil {
		field, length, data = "E8M0", len(s.E8M0), addressOf(s.E8M0)
		raw.dtype = C.ROPE_DTYPE_E8M0
	}
	groups := s.groups(dim)
	if n, good := s.needs(heads, groups, size); !good || n > uint64(length) || n != uint64(length) && s.Strides == nil {
		ofPages := strings.Contains(name, "Cache") || strings.HasPrefix(name, "source.")
		if ofPages {
			if err := checkPages(function, name, &size); err != nil {
				return nil, err
			}
		}
		return nil, invalid(function, "%s.%s has %s, and must have %s", name, field, count(length, "scale", "scales"),
			s.shape(layout, heads, groups, size, ofPages))
	}
	s.setStrides(raw, layout, heads, groups, size)
	return (*C.uint8_t)(data), nil
}

// needs is how many elements the array of such a tensor has, or reaches by its strides; false if there is none.
func (s *Scale) needs(heads, groups int, size Step) (uint64, bool) {
	batch, tokens, heads := max(0, size.Batch), max(0, size.Tokens), max(0, heads)
	if s.Strides == nil || batch == 0 || tokens == 0 || heads == 0 {
		return extent.Volume(batch, tokens, heads, groups)
	}
	return extent.End(groups, [3]uint64{uint64(batch), uint64(tokens), uint64(heads)},
		[3]int{s.Strides.Batch, s.Strides.Token, s.Strides.Head})
}

// shape is that of the array, in words.
func (s *Scale) shape(layout Layout, heads, groups int, size Step, ofPages bool) string {
	outer, inner := "batch", "tokens"
	if ofPages {
		outer, inner = "pages", "page_size"
	}
	switch {
	case s.Strides != nil:
		return fmt.Sprintf("[%s, %s, heads, groups] = [%d, %d, %d, %d], by strides %+v", outer, inner, size.Batch,
			size.Tokens, heads, groups, *s.Strides)
	case layout == LayoutBHSD || layout == LayoutHND:
		return fmt.Sprintf("[%s, heads, %s, groups] = [%d, %d, %d, %d]", outer, inner, size.Batch, heads, size.Tokens,
			groups)
	case layout == LayoutSBHD:
		return fmt.Sprintf("[%s, %s, heads, groups] = [%d, %d, %d, %d]", inner, outer, size.Tokens, size.Batch, heads,
			groups)
	}
	return fmt.Sprintf("[%s, %s, heads, groups] = [%d, %d, %d, %d]", outer, inner, size.Batch, size.Tokens, heads, groups)
}

// setStrides fills the strides of the C scale.
func (s *Scale) setStrides(raw *C.ropego_scale, layout Layout, heads, groups int, size Step) {
	strides := s.strides(layout, heads, groups, size)
	raw.stride_batch, raw.stride_token = C.int64_t(strides.Batch), C.int64_t(strides.Token)
	raw.stride_head = C.int64_t(strides.Head)
}

// strides are those of the array: its own, or those of a contiguous one with the order of its codes.
func (s *Scale) strides(layout Layout, heads, groups int, size Step) Strides {
	if s.Strides != nil {
		return *s.Strides
	}
	switch layout {
	case LayoutBHSD, LayoutHND:
		return Strides{Batch: heads * size.Tokens * groups, Token: groups, Head: size.Tokens * groups}
	case LayoutSBHD:
		return Strides{Batch: heads * groups, Token: size.Batch * heads * groups, Head: groups}
	}
	return Strides{Batch: size.Tokens * heads * groups, Token: heads * groups, Head: groups}
}

// groups are those of a head of dim channels.
func (s *Scale) groups(dim int) int {
	if s.Group == 0 {
		return 1
	}
	return dim / s.Group
}

// checkScales fills the C scales of K and V.
func (cache *KVCache[K, V]) checkScales(function string, names *memoryNames, rawK, rawV *C.ropego_scale,
	c *contextState) (k, v *C.uint8_t, err error) {
	if cache.KScale != nil && cache.K.empty() || cache.VScale != nil && cache.V.empty() {
		return nil, nil, invalid(function, "%s and %s must be nil without %s and %s", names.kScale, names.vScale, names.k, names.v)
	}
	size := cache.size()
	k, err = checkScale(function, names.kScale, cache.KScale, rawK, cache.K.Layout, cache.K.Heads, cache.K.channels(c),
		size)
	if err != nil {
		return nil, nil, err
	}
	v, err = checkScale(function, names.vScale, cache.VScale, rawV, cache.V.Layout, cache.V.Heads, cache.vDim(c), size)
	return k, v, err
}

// checkUnscaled refuses scales in calls for which they are not.
func (cache *KVCache[K, V]) checkUnscaled(function string) error {
	if cache.KScale != nil || cache.VScale != nil {
		return invalid(function, "KVCache.KScale and KVCache.VScale must be nil: PrepareCall is for caches with scales")
	}
	return nil
}

// kept is a copy, for what the caller changes afterwards.
func (s *Scale) kept() *Scale {
	if s == nil {
		return nil
	}
	scale := *s
	if s.Strides != nil {
		strides := *s.Strides
		scale.Strides = &strides
	}
	return &scale
}

// tellWrites reports the scales of slots that are written.
func (s *Scale) tellWrites(slots []int, layout Layout, heads, dim int, size Step) {
	s.tellSlots(s.tell(), slots, layout, heads, dim, size)
}

// tellSlots reports the scales of these slots.
func (s *Scale) tellSlots(tell func(unsafe.Pointer, uint64), slots []int, layout Layout, heads, dim int, size Step) {
	data, bytes := s.memory()
	if data == nil {
		return
	}
	groups := s.groups(dim)
	strides := s.strides(layout, heads, groups, size)
	for _, slot := range slots {
		at := slot/size.Tokens*strides.Batch + slot%size.Tokens*strides.Token
		blocks(tell, data, bytes, [3]int{1, 1, heads}, [3]int{0, 0, strides.Head}, at, groups)
	}
}

// tellAll reports those of an output.
func (s *Scale) tellAll(layout Layout, heads, dim int, size Step) {
	if data, bytes := s.memory(); data != nil {
		groups := s.groups(dim)
		strides := s.strides(layout, heads, groups, size)
		blocks(s.tell(), data, bytes, [3]int{size.Batch, size.Tokens, heads},
			[3]int{strides.Batch, strides.Token, strides.Head}, 0, groups)
	}
}

// memory is the array, and the bytes of a scale; nil: there is none.
func (s *Scale) memory() (data unsafe.Pointer, bytes uint64) {
	switch {
	case s == nil || s.Data == nil && s.E8M0 == nil:
		return nil, 0
	case s.E8M0 != nil:
		return unsafe.Pointer(unsafe.SliceData(s.E8M0)), 1
	}
	return unsafe.Pointer(unsafe.SliceData(s.Data)), 4
}

// tell is how a call that writes the codes touches their scales.
func (s *Scale) tell() func(unsafe.Pointer, uint64) {
	if s != nil && s.Computed {
		return raceWrite
	}
	return raceRead
}

// number is how C says it.
func number(yes bool) C.int32_t {
	if yes {
		return 1
	}
	return 0
}
