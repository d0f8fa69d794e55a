package rope

// Rows of bytes in which codes, their scales and the key have types of their own, against a packer that is written here.

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// sizeOfCode is the size of a code in E4M3 without its sign.
func sizeOfCode(code uint8) float64 {
	if code>>3 == 0 {
		return float64(code) / 512
	}
	return math.Ldexp(float64(8+code&7), int(code>>3)-10)
}

// nearestCode is the nearest of all codes, of two that are as near the even one.
func nearestCode(x float64) (nearest uint8) {
	least := math.Inf(1)
	for code := uint8(0); code < 0x7f; code++ {
		off := math.Abs(sizeOfCode(code) - math.Abs(x))
		if off < least || off == least && code&1 == 0 {
			least, nearest = off, code
		}
	}
	if math.Signbit(x) {
		nearest |= 0x80
	}
	return nearest
}

// packRow has the codes of groups of 128, their scales, which are powers of two, and the key.
func packRow(latent, key []BFloat16) (row []byte) {
	var scales []byte
	for group := range slices.Chunk(latent, 128) {
		largest := 0.0
		for _, x := range group {
			largest = max(largest, math.Abs(toFloat(x)))
		}
		fraction, exponent := math.Frexp(max(largest/448, 1e-4))
		if fraction == 0.5 {
			exponent--
		}
		scale := math.Ldexp(1, exponent)
		for _, x := range group {
			row = append(row, nearestCode(toFloat(x)/scale))
		}
		scales = binary.NativeEndian.AppendUint32(scales, math.Float32bits(float32(scale)))
	}
	row = append(row, scales...)
	for _, x := range key {
		row = binary.NativeEndian.AppendUint16(row, uint16(x))
	}
	return row
}

// DeepSeek V3.2: 512 channels of the latent in E4M3, a scale for each 128 of them, and the 64 that turn in bfloat16.
func TestRowsOf656BytesAreThoseOfFlashMLA(t *testing.T) {
	const latent, span, rowBytes, pages, pageSize, tokens = 512, 64, 656, 3, 16, 21
	c := mustNew(t, Config{HeadDim: span, Theta: 10000, Pairing: PairingInterleaved})
	r := rand.New(rand.NewPCG(20, 28))
	numbers := make([]BFloat16, tokens*(latent+span)) // a row of latent and key for each token
	for i := range numbers {
		numbers[i] = fromFloat[BFloat16]((2*r.Float64() - 1) * math.Ldexp(1, -r.IntN(14)))
	}
	clear(numbers[:128]) // a group whose scale is the least
	var slots []int64
	var turned []BFloat16
	for token := range tokens {
		slots = append(slots, int64((token*29+5)%(pages*pageSize)))
		turned = append(turned, numbers[token*(latent+span)+latent:][:span]...)
	}
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(100)}
	if err := ApplyQK(c, Tensor[BFloat16]{}, BSHD(turned, 1), step); err != nil {
		t.Fatal(err)
	}

	// The memory is aligned to the scales, and has three types.
	asScales := make([]float32, pages*pageSize*rowBytes/4)
	data := unsafe.Pointer(unsafe.SliceData(asScales))
	asCodes := unsafe.Slice((*F8E4M3)(data), 4*len(asScales))
	asKeys := unsafe.Slice((*BFloat16)(data), 2*len(asScales))
	bytes := unsafe.Slice((*byte)(data), 4*len(asScales))
	for i := range bytes {
		bytes[i] = 0x33
	}
	want := slices.Clone(bytes)
	for token, slot := range slots {
		copy(want[slot*rowBytes:], packRow(numbers[token*(latent+span):][:latent], turned[token*span:][:span]))
	}

	rows := func(size int) Strides { return Strides{Batch: pageSize * rowBytes / size, Token: rowBytes / size} }
	ofScales, given := rows(4), Strides{Token: latent + span}
	cache := KVCache[BFloat16, F8E4M3]{K: Strided(asKeys[(latent+16)/2:], 1, rows(2)), V: Strided(asCodes, 1, rows(1)),
		VScale: &Scale{Data: asScales[latent/4:], Computed: true, Group: 128, PowerOfTwo: true, MinScale: 1e-4,
			Strides: &ofScales}, Pages: pages, PageSize: pageSize, VHeadDim: latent}
	step.Slots = MappedSlots(slots)
	k, v := Strided(numbers[latent:], 1, given), Strided(numbers, 1, given)

	// Three slices of one memory: what they share is proved to be apart before anything is written.
	before := slices.Clone(bytes)
	for words, change := range map[string]func(cache *KVCache[BFloat16, F8E4M3]){
		"KVCache.K with 3 pages of 16 slots": func(cache *KVCache[BFloat16, F8E4M3]) { cache.K.Data = asKeys[265:] },
		"KVCache.VScale.Data has 7711":       func(cache *KVCache[BFloat16, F8E4M3]) { cache.VScale.Data = asScales[161:] },
		"KVCache.V overlaps KVCache.K":       func(cache *KVCache[BFloat16, F8E4M3]) { cache.K.Data = asKeys[latent/2-1:] },
		"KVCache.VScale.Data overlaps":       func(cache *KVCache[BFloat16, F8E4M3]) { cache.VScale.Data = asScales[latent/4+1:] },
	} {
		changed, scale := cache, *cache.VScale
		changed.VScale = &scale
		change(&changed)
		refused(t, Append(c, Tensor[BFloat16]{}, k, v, changed, step), words)
	}
	if !slices.Equal(bytes, before) {
		t.Error("a refused call has written")
	}
	if err := Append(c, Tensor[BFloat16]{}, k, v, cache, step); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if bytes[i] != want[i] {
			t.Fatalf("byte %d of slot %d is %#x, want %#x", i%rowBytes, i/rowBytes, bytes[i], want[i])
		}
	}
}
