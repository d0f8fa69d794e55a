package rope_test

import (
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

// The cache of DeepSeek V3.2 in the rows of FlashMLA, 656 bytes for each token: 512 channels of the latent in E4M3, in
// four groups with a scale each, and the 64 channels of the key, which turn, in bfloat16. One call writes them, and puts
// queries together: channels that are absorbed into the latent (the rest) beside those that turn. Another reads the rows
// back as float32. What it reads is what the bytes say, and that is compared with the latents, and with keys that are
// turned here, as are the queries.
func Example_mlaRows() {
	const latent, span, group, rowBytes, pages, pageSize, tokens, first = 512, 64, 128, 656, 2, 64, 3, 1000
	const width, qHeads = latent + span, 4
	ctx, err := rope.New(rope.Config{HeadDim: span, Theta: 10000, Pairing: rope.PairingInterleaved})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	asIs, err := rope.New(rope.Config{HeadDim: span, Scaling: rope.ScalingNope})
	if err != nil {
		log.Fatal(err)
	}
	defer asIs.Close()

	// What projections give for each token: a latent, and a key beside it; q, and what is absorbed, by a product for each
	// head, [heads, tokens, latent].
	projection := func(step float64, count int) []rope.BFloat16 {
		x := make([]rope.BFloat16, count)
		for i := range x {
			x[i] = rope.BFloat16FromFloat32(float32(math.Sin(step*float64(i)) * math.Exp2(float64(-i%7))))
		}
		return x
	}
	numbers := projection(0.37, tokens*width)
	given := rope.Strides{Token: width}
	k, v := rope.Strided(numbers[latent:], 1, given), rope.Strided(numbers, 1, given)
	q, absorbed := projection(0.3, tokens*qHeads*span), projection(0.4, tokens*qHeads*latent)
	queries := make([]rope.BFloat16, tokens*qHeads*width)
	query := rope.Strides{Token: qHeads * width, Head: width}

	// One memory, whose parts are slices of their own types.
	memory := make([]float32, pages*pageSize*rowBytes/4)
	codes, err := rope.InBytes[rope.F8E4M3](memory, 0)
	if err != nil {
		log.Fatal(err)
	}
	scales, err := rope.InBytes[float32](memory, latent)
	if err != nil {
		log.Fatal(err)
	}
	keys, err := rope.InBytes[rope.BFloat16](memory, latent+latent/group*4)
	if err != nil {
		log.Fatal(err)
	}
	rows := func(size int) rope.Strides {
		return rope.Strides{Batch: pageSize * rowBytes / size, Token: rowBytes / size}
	}
	ofScales := rows(4)
	cache := rope.KVCache[rope.BFloat16, rope.F8E4M3]{
		K: rope.Strided(keys, 1, rows(2)), V: rope.Strided(codes, 1, rows(1)), VHeadDim: latent,
		VScale: &rope.Scale{Data: scales, Computed: true, Group: group, PowerOfTwo: true, MinScale: 1e-4, Strides: &ofScales},
		Pages:  pages, PageSize: pageSize,
	}
	slots := []int64{70, 3, 71}
	step := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(first), Slots: rope.MappedSlots(slots)}
	call := rope.Call{
		Q: rope.BSHD(q, qHeads).Any(), QOut: rope.Strided(queries[latent:], qHeads, query).Any(),
		Rest:    rope.BHSD(absorbed, qHeads).Any().WithHeadDim(latent),
		RestOut: rope.Strided(queries, qHeads, query).Any().WithHeadDim(latent),
		K:       k.Any(), V: v.Any().WithHeadDim(latent),
		Cache: &rope.Cache{K: cache.K.Any(), V: cache.V.Any().WithHeadDim(latent).WithScale(cache.VScale),
			Pages: pages, PageSize: pageSize},
	}
	if err := rope.Apply(ctx, call, step); err != nil {
		log.Fatal(err)
	}

	// Read back: a move to a cache of float32, by a context that does not turn.
	read := rope.KVCache[float32, float32]{K: rope.NHD(make([]float32, tokens*span), 1),
		V: rope.NHD(make([]float32, tokens*latent), 1), VHeadDim: latent, Pages: 1, PageSize: tokens}
	move := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(0), Source: rope.MappedSlots(slots),
		Slots: rope.MappedSlots([]int64{0, 1, 2})}
	if err := rope.MoveBetween(asIs, cache, read, move); err != nil {
		log.Fatal(err)
	}

	bytes, err := rope.InBytes[byte](memory, 0)
	if err != nil {
		log.Fatal(err)
	}
	// By how much of a pair channels are off those of x, turned.
	offTurned := func(x []rope.BFloat16, token int, got func(int) float64) (off float64) {
		for c := 0; c < span; c += 2 {
			sin, cos := math.Sincos((first + float64(token)) * math.Pow(10000, -float64(c)/span))
			x0, x1 := float64(x[c].Float32()), float64(x[c+1].Float32())
			of0, of1 := got(c)-(x0*cos-x1*sin), got(c+1)-(x1*cos+x0*sin)
			off = max(off, math.Hypot(of0, of1)/math.Hypot(x0, x1))
		}
		return off
	}
	same, ofLatents, ofKeys, ofQueries := true, 0.0, 0.0, 0.0
	for token, slot := range slots {
		row := bytes[slot*rowBytes:][:rowBytes]
		for c := range latent {
			scale := math.Float32frombits(binary.NativeEndian.Uint32(row[latent+c/group*4:]))
			got, x := float64(read.V.Data[token*latent+c]), float64(numbers[token*width+c].Float32())
			same = same && got == e4m3(rope.F8E4M3(row[c]))*float64(scale)
			ofLatents = max(ofLatents, math.Abs(got-x)/(math.Abs(x)+float64(scale)/64)) // codes below 1/64 are equidistant
		}
		key := func(c int) float64 { return float64(read.K.Data[token*span+c]) }
		for c := range span {
			bits := binary.NativeEndian.Uint16(row[latent+latent/group*4+2*c:])
			same = same && key(c) == float64(rope.BFloat16(bits).Float32())
		}
		ofKeys = max(ofKeys, offTurned(numbers[token*width+latent:], token, key))
		for h := range qHeads {
			made, rest := queries[(token*qHeads+h)*width:][:width], absorbed[(h*tokens+token)*latent:][:latent]
			same = same && slices.Equal(made[:latent], rest)
			turned := func(c int) float64 { return float64(made[latent+c].Float32()) }
			ofQueries = max(ofQueries, offTurned(q[(token*qHeads+h)*span:], token, turned))
		}
	}
	fmt.Println("read back is what the bytes say, and the rest is as it was:", same)
	fmt.Println("latents within 1/16 of their value:", ofLatents <= 1.0/16)
	fmt.Println("keys and queries within the rounding of their pair:", max(ofKeys, ofQueries) <= 1.0/256+1e-4)
	// Output:
	// read back is what the bytes say, and the rest is as it was: true
	// latents within 1/16 of their value: true
	// keys and queries within the rounding of their pair: true
}
