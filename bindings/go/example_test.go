package rope_test

import (
	"errors"
	"fmt"
	"log"
	"math"

	rope "github.com/librope/librope/bindings/go"
)

func Example() {
	ctx, err := rope.New(rope.Config{HeadDim: 128, Theta: 500000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()

	const tokens, qHeads, kHeads = 7, 32, 8
	q := make([]rope.BFloat16, tokens*qHeads*128)
	k := make([]rope.BFloat16, tokens*kHeads*128)
	step := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(0)}
	for range 32 { // layers
		if err := rope.ApplyQK(ctx, rope.BSHD(q, qHeads), rope.BSHD(k, kHeads), step); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("turned", len(q)+len(k), "elements per layer")
	// Output: turned 35840 elements per layer
}

// The call of all layers of a forward pass, checked once, with cos and sin made once.
func ExamplePrepare() {
	ctx, err := rope.New(rope.Config{HeadDim: 2, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	step := rope.Step{Batch: 1, Tokens: 2, Positions: rope.Offset(0)}
	call, err := rope.Prepare(ctx, rope.BSHD[float32](nil, 1), rope.BSHD[rope.BFloat16](nil, 1), step)
	if err != nil {
		log.Fatal(err)
	}
	defer call.Close()
	for layer := range 2 {
		q := []float32{1, 0, 1, float32(layer)}
		k := make([]rope.BFloat16, 4)
		if err := call.Apply(q, k); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.4f\n", q)
	}
	fmt.Println(call.Apply(make([]float32, 2), make([]rope.BFloat16, 4)))
	// Output:
	// [1.0000 0.0000 0.5403 0.8415]
	// [1.0000 0.0000 -0.3012 1.3818]
	// rope.Prepared.Apply: q with batch 1, tokens 2, heads 1, channels 2 and LayoutBSHD does not fit its slice of 2 elements, which it must fill: it needs 4 (invalid argument)
}

// The append of all layers of a step to caches in 8 bits: keys in e4m3, by a scale of each layer, and values in
// blocks of Q8_0.
func ExamplePrepareCall() {
	ctx, err := rope.New(rope.Config{HeadDim: 32, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	const pages, pageSize = 1, 4
	step := rope.Step{Batch: 1, Tokens: 1, Positions: rope.Offset(0), Slots: rope.MappedSlots([]int64{2})}
	scale := &rope.Scale{Data: []float32{}, Strides: &rope.Strides{}} // strides of 0: one for all
	none := rope.BSHD[rope.BFloat16](nil, 1).Any()
	call, err := rope.PrepareCall(ctx, rope.Call{Q: none, K: none, V: none, Cache: &rope.Cache{
		K: rope.NHD[rope.F8E4M3](nil, 1).Any().WithScale(scale), V: rope.NHD[rope.Q80](nil, 1).Any(),
		Pages: pages, PageSize: pageSize,
	}}, step)
	if err != nil {
		log.Fatal(err)
	}
	defer call.Close()
	for layer, kScale := range []float32{0.5, 0.25} {
		q, kv := make([]rope.BFloat16, 32), make([]rope.BFloat16, 32)
		for i := range kv {
			kv[i] = rope.BFloat16FromFloat32(float32(1 + layer))
		}
		keys, values := make([]rope.F8E4M3, pages*pageSize*32), make([]rope.Q80, pages*pageSize)
		err := call.Apply(rope.Layer{Q: rope.ArrayOf(q), K: rope.ArrayOf(kv), V: rope.ArrayOf(kv),
			CacheK: rope.ArrayOf(keys), CacheKScales: rope.ArrayOf([]float32{kScale}), CacheV: rope.ArrayOf(values)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("key %#x, value %d * %.4f\n", keys[2*32], values[2].Codes[0], values[2].D.Float32())
	}
	// Output:
	// key 0x40, value 127 * 0.0079
	// key 0x50, value 127 * 0.0157
}

// A position per token, and the shortest call.
func ExampleApplyTHD() {
	ctx, err := rope.New(rope.Config{HeadDim: 2, Theta: 10000, Pairing: rope.PairingInterleaved})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	q := []float32{1, 0, 1, 0}
	if err := rope.ApplyTHD(ctx, []int64{0, 1}, q, 1, nil, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n", q)
	// Output: [1.0000 0.0000 0.5403 0.8415]
}

func ExampleFromJSON() {
	model, err := rope.FromJSON([]byte(`{"model_type": "gemma3_text", "hidden_size": 2560,
		"num_attention_heads": 8, "head_dim": 256, "max_position_embeddings": 131072,
		"rope_theta": 1000000, "rope_local_base_freq": 10000,
		"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "num_hidden_layers": 12}`))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	contexts, err := model.Contexts(8192) // one per kind of layer
	if err != nil {
		log.Fatal(err)
	}
	for _, layer := range []int{4, 5} {
		kind, err := model.LayerType(layer)
		if err != nil {
			log.Fatal(err)
		}
		frequencies, err := contexts[kind].InvFreq(0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(layer, model.LayerTypes()[kind], frequencies[0])
	}
	// Output:
	// 4 sliding_attention 1
	// 5 full_attention 0.125
}

// A sequence that comes to LongRoPE's change: its cached keys take the other frequencies, at the positions that they
// keep, and are those of a sequence that was long from the start. In the slots of a cache MoveSlots does it.
func ExampleNewSets() {
	short := rope.Config{HeadDim: 8, Theta: 10000, Pairing: rope.PairingHalves, Scaling: rope.ScalingLongRope,
		ShortFactor: []float64{1, 1.1, 1.2, 1.3}, LongFactor: []float64{1, 2, 8, 32},
		OriginalMaxPositionEmbeddings: 64, MaxPositionEmbeddings: 4096}
	change, err := short.NextChange(1)
	if err != nil {
		log.Fatal(err)
	}
	long := short
	short.SeqLen, long.SeqLen = 1, change
	both, err := rope.NewSets([]rope.Config{short, long})
	if err != nil {
		log.Fatal(err)
	}
	defer both.Close()

	cached, direct := make([]float32, 64*8), make([]float32, 64*8)
	for i := range cached {
		cached[i] = float32(i%13) - 6
	}
	copy(direct, cached)
	turn := func(keys []float32, step rope.Step) {
		step.Batch, step.Tokens, step.Positions = 1, 64, rope.Offset(0)
		if err := rope.ApplyQK(both, rope.Tensor[float32]{}, rope.BSHD(keys, 1), step); err != nil {
			log.Fatal(err)
		}
	}
	oldSet, newSet, from := []int32{0}, []int32{1}, rope.Offset(0)
	turn(cached, rope.Step{FreqSets: oldSet})
	turn(direct, rope.Step{FreqSets: newSet})
	turn(cached, rope.Step{Operation: rope.OperationRerotate, From: &from, FromFreqSets: oldSet, FreqSets: newSet})
	off := 0.0
	for i := range cached {
		off = max(off, math.Abs(float64(cached[i]-direct[i])))
	}
	fmt.Println(change, off < 2e-5)
	// Output: 65 true
}

func ExampleError() {
	_, err := rope.New(rope.Config{HeadDim: 127, Theta: 10000, Pairing: rope.PairingHalves})
	var e *rope.Error
	fmt.Println(errors.Is(err, rope.ErrInvalidArgument), errors.As(err, &e))
	fmt.Println(e.Message)
	// Output:
	// true true
	// rope.New: HeadDim (127) must be even and from 2 to 1024
}

// q and k of a fused projection: one buffer [tokens, q heads + k heads + v heads, 64].
func ExampleStrided() {
	ctx, err := rope.New(rope.Config{HeadDim: 64, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	const tokens, qHeads, kvHeads = 9, 6, 2
	const row = (qHeads + 2*kvHeads) * 64
	qkv := make([]float32, tokens*row)
	strides := rope.Strides{Token: row, Head: 64}
	q := rope.Strided(qkv, qHeads, strides)
	k := rope.Strided(qkv[qHeads*64:], kvHeads, strides)
	step := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(100)}
	fmt.Println(rope.ApplyQK(ctx, q, k, step))
	// Output: <nil>
}

// cos and sin once per step, for all layers.
func ExampleFillCosSin() {
	ctx, err := rope.New(rope.Config{HeadDim: 128, Theta: 500000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	rows := rope.Packed(make([]float32, 128))
	step := rope.Step{Batch: 1, Tokens: 1, Positions: rope.Offset(12345)}
	if err := rope.FillCosSin(ctx, step, rows); err != nil {
		log.Fatal(err)
	}
	step = rope.Step{Batch: 1, Tokens: 1, CosSin: rows}
	q := make([]float32, 8*128)
	fmt.Println(rope.ApplyQK(ctx, rope.BSHD(q, 8), rope.Tensor[float32]{}, step))
	// Output: <nil>
}
