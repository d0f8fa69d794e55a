package rope

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// Scale is what the codes of K or V of a KVCache in 8 bits stand for: value = code * scale. It has one of
// Value, Data and E8M0.
//
//	cache := rope.KVCache[rope.F8E4M3, rope.F8E4M3]{
//		K: rope.NHD(keys, 8), KScale: &rope.Scale{Value: 0.02},
//		V: rope.NHD(values, 8), VScale: &rope.Scale{Data: scales, Computed: true},
//		Pages: pages, PageSize: 16,
//	}
type Scale struct {
	Value float32 // one for all, given: 2^-126 to 2^126

	// A scale of each head, or group of its channels: [pages, page_size, heads, groups] of K or V, whatever
	// their layout is.
	Data []float32
	E8M0 []uint8 // the same as powers of two, of which the exponent is kept: 2^(byte - 127)

	// Data or E8M0 are written, in the slots that the call fills; otherwise they are given.
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

// checkScale fills the C scale of a cache's memory after checking that its array is that of the memory.
func checkScale(function, name string, s *Scale, raw *C.ropego_scale, heads, dim int, size Step) (*C.uint8_t, error) {
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
		return nil, nil
	}
	field, length, data := "Data", len(s.Data), addressOf(s.Data)
	raw.dtype = C.ROPE_DTYPE_F32
	if s.E8M0 != nil {
		field, length, data = "E8M0", len(s.E8M0), addressOf(s.E8M0)
		raw.dtype = C.ROPE_DTYPE_E8M0
	}
	groups := s.groups(dim)
	if n, good := extent.Volume(max(0, size.Batch), max(0, size.Tokens), max(0, heads), groups); !good || n != uint64(length) {
		return nil, invalid(function, "%s.%s has %d scales, and must have [pages, page_size, heads, groups] = "+
			"[%d, %d, %d, %d]", name, field, length, size.Batch, size.Tokens, heads, groups)
	}
	raw.stride_head = C.int64_t(groups)
	raw.stride_token = C.int64_t(heads * groups)
	raw.stride_batch = C.int64_t(size.Tokens * heads * groups)
	return (*C.uint8_t)(data), nil
}

// groups are those of a head of dim channels.
func (s *Scale) groups(dim int) int {
	if s.Group == 0 {
		return 1
	}
	return dim / s.Group
}

// checkUnscaled refuses scales in calls for which they are not.
func (cache *KVCache[K, V]) checkUnscaled(function string) error {
	if cache.KScale != nil || cache.VScale != nil {
		return invalid(function, "KVCache.KScale and KVCache.VScale must be nil: they are for Append and AppendTo")
	}
	return nil
}

// tellRace reports the scales of these slots.
func (s *Scale) tellRace(slots []int, heads, dim int) {
	if s == nil || s.Data == nil && s.E8M0 == nil {
		return
	}
	tell, row := raceRead, heads*s.groups(dim)
	if s.Computed {
		tell = raceWrite
	}
	data, bytes := unsafe.Pointer(unsafe.SliceData(s.Data)), uint64(4)
	if s.E8M0 != nil {
		data, bytes = unsafe.Pointer(unsafe.SliceData(s.E8M0)), 1
	}
	for _, slot := range slots {
		blocks(tell, data, bytes, [3]int{1, 1, 1}, [3]int{}, slot*row, row)
	}
}

// number is how C says it.
func number(yes bool) C.int32_t {
	if yes {
		return 1
	}
	return 0
}
