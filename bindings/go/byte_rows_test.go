package rope

// Rows of bytes in which codes, their scales and the key have types of their own, against a packer that is written here.

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
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

func inBytes[T, M OutputElement | uint8 | uint16](t *testing.T, memory []M, offset int) []T {
	t.Helper()
	elements, err := InBytes[T](memory, offset)
	if err != nil {
		t.Fatal(err)
	}
	return elements
}

func holds[T any](t *testing.T, elements []T, want int) {
	t.Helper()
	if len(elements) != want || cap(elements) != want {
		t.Errorf("%d elements, and room for %d, want %d", len(elements), cap(elements), want)
	}
}

func TestElementsInBytesAreThoseOfTheMemory(t *testing.T) {
	memory := inBytes[byte](t, make([]float32, 10), 0) // which is aligned
	for i := range memory {
		memory[i] = byte(i)
	}
	for i, x := range inBytes[BFloat16](t, memory, 2) {
		if want := binary.NativeEndian.Uint16(memory[2+2*i:]); uint16(x) != want {
			t.Errorf("%d: %#x, want %#x", i, uint16(x), want)
		}
	}
	inBytes[float32](t, memory, 8)[1] = 1
	if got := binary.NativeEndian.Uint32(memory[12:]); got != math.Float32bits(1) {
		t.Errorf("bytes 12 to 15 are %#x after a write", got)
	}
	holds(t, memory, 40)
	holds(t, inBytes[BFloat16](t, memory, 2), 19)
	holds(t, inBytes[float32](t, memory[:39], 0), 9) // and no room beyond the slice
	holds(t, inBytes[Q80](t, memory, 4), 1)
	holds(t, inBytes[float32](t, memory[:38], 36), 0)
	holds(t, inBytes[int8](t, memory, 40), 0)
	holds(t, inBytes[F8E5M2](t, []Q80(nil), 0), 0)
	holds(t, inBytes[byte](t, make([]Q80, 2), 34), 34)
	if got := inBytes[BFloat16](t, []uint16{0x3f80, 0xc040}, 0); !slices.Equal(got, []BFloat16{0x3f80, 0xc040}) {
		t.Errorf("bits became %v", got)
	}
	_, beyond := InBytes[int8](memory, 41)
	refused(t, beyond, "rope.InBytes: offset (41) must be from 0 to the bytes of memory (40)")
	_, below := InBytes[int8](memory, -1)
	refused(t, below, "rope.InBytes: offset (-1) must be from 0")
	_, odd := InBytes[float32](memory, 6)
	refused(t, odd, "rope.InBytes: memory from byte 6 on must be aligned to float32, by 4 bytes")
	_, block := InBytes[Q80](memory, 3)
	refused(t, block, "memory from byte 3 on must be aligned to rope.Q80, by 2 bytes")
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

	// One memory, of three types.
	asScales := make([]float32, pages*pageSize*rowBytes/4)
	asCodes, asKeys := inBytes[F8E4M3](t, asScales, 0), inBytes[BFloat16](t, asScales, 0)
	bytes := inBytes[byte](t, asScales, 0)
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
