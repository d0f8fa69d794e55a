package rope_test

import (
	"fmt"
	"log"
	"math"
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

const (
	vocabulary, hidden = 64, 48
	layers             = 2
	dim, qHeads, heads = 32, 4, 2 // heads of k and v
	row                = heads * dim
	packedRow          = qHeads*dim + 2*row // q, k and v of a token, as the projection leaves them
	pageSize, pages    = 4, 16
	width              = 8 // the most pages of a sequence
	generated          = 12
)

// decoder is a model of Qwen3's shape with random weights, in rows: what one output needs lies together.
type decoder struct {
	layers          [layers]struct{ qkv, qNorm, kNorm, out, up, down []float32 }
	embedding, head []float32
}

func newDecoder() *decoder {
	seed := uint32(1)
	numbers := func(count int, center, scale float32) []float32 {
		x := make([]float32, count)
		for i := range x {
			seed = seed*1664525 + 1013904223
			x[i] = center + scale*(float32(seed>>8)/8388608-1)
		}
		return x
	}
	d := new(decoder)
	for i := range d.layers {
		layer := &d.layers[i]
		layer.qkv, layer.out = numbers(packedRow*hidden, 0, 0.3), numbers(hidden*qHeads*dim, 0, 0.3)
		layer.qNorm, layer.kNorm = numbers(dim, 2, 0.5), numbers(dim, 2, 0.5)
		layer.up, layer.down = numbers(2*hidden*hidden, 0, 0.3), numbers(2*hidden*hidden, 0, 0.3)
	}
	d.embedding, d.head = numbers(vocabulary*hidden, 0, 1), numbers(vocabulary*hidden, 0, 1)
	return d
}

// multiply is a matrix times x.
func multiply(weights, x []float32) []float32 {
	out := make([]float32, len(weights)/len(x))
	for r := range out {
		for c := range x {
			out[r] += weights[r*len(x)+c] * x[c]
		}
	}
	return out
}

// normed is an RMS norm of x, without a weight.
func normed(x []float32) []float32 {
	sum, out := float32(0), make([]float32, len(x))
	for _, x := range x {
		sum += x * x
	}
	scale := float32(1 / math.Sqrt(float64(sum)/float64(len(x))+1e-6))
	for i := range x {
		out[i] = x[i] * scale
	}
	return out
}

func add(x, more []float32) {
	for i := range x {
		x[i] += more[i]
	}
}

func (d *decoder) embed(token int) []float32 {
	return slices.Clone(d.embedding[token*hidden:][:hidden])
}

// project makes the packed q, k and v of one token.
func (d *decoder) project(layer int, x []float32) []float32 {
	return multiply(d.layers[layer].qkv, normed(x))
}

// finish is what follows attention.
func (d *decoder) finish(layer int, attended, x []float32) {
	add(x, multiply(d.layers[layer].out, attended))
	inner := multiply(d.layers[layer].up, normed(x))
	for i := range inner {
		inner[i] = max(0, inner[i])
	}
	add(x, multiply(d.layers[layer].down, inner))
}

// next is the likeliest token behind x.
func (d *decoder) next(x []float32) int {
	logits := multiply(d.head, normed(x))
	return slices.Index(logits, slices.Max(logits))
}

// attend is attention of one token's q over the keys and values of slots, in their order.
func attend(q, keys, values []float32, slots []int) []float32 {
	out, scores := make([]float32, qHeads*dim), make([]float64, len(slots))
	for h := range qHeads {
		head := h / (qHeads / heads) * dim
		for i, slot := range slots {
			scores[i] = 0
			for c := range dim {
				scores[i] += float64(q[h*dim+c]) * float64(keys[slot*row+head+c]) / math.Sqrt(dim)
			}
		}
		most, sum := slices.Max(scores), 0.0
		for i := range scores {
			scores[i] = math.Exp(scores[i] - most)
			sum += scores[i]
		}
		for i, slot := range slots {
			for c := range dim {
				out[h*dim+c] += float32(scores[i]/sum) * values[slot*row+head+c]
			}
		}
	}
	return out
}

// A small engine that generates tokens: two sequences in a paged cache, prompts first, then one token of each per
// step. A call is prepared once for all layers of a step; in each layer it norms q and k, turns them, and stores the
// turned keys and the values in pages, straight from the packed projection. The tokens are those of plain code.
func Example_generate() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 1e6, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	model, prompts := newDecoder(), [2][]int{{7, 42, 19}, {3, 14, 15, 9, 26, 53, 58, 9, 7}}
	texts := [2][]int{slices.Clone(prompts[0]), slices.Clone(prompts[1])}
	var keys, values [layers][]float32
	for layer := range layers {
		keys[layer], values[layer] = make([]float32, pages*pageSize*row), make([]float32, pages*pageSize*row)
	}
	table, used := slices.Repeat([]int32{-1}, 2*width), int32(0)
	lengths := make([]int32, 2) // of the sequences in the cache

	// The call of all layers, but for its step. What they lend is described without slices; q turns in place.
	part := func(heads int) rope.AnyTensor {
		return rope.Strided[float32](nil, heads, rope.Strides{Token: packedRow, Head: dim}).Any()
	}
	memory := rope.NHD[float32](nil, heads).Any()
	described := rope.Call{Q: part(qHeads), K: part(heads), V: part(heads),
		Cache: &rope.Cache{K: memory, V: memory, Pages: pages, PageSize: pageSize}}
	norm := &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: rope.ArrayOf([]float32{})}

	for range generated {
		// The tokens that are not in the cache yet, packed: a prompt, later one of each sequence.
		ends, x := []int32{0}, [][]float32(nil)
		for s, text := range texts {
			for n := int(lengths[s]); n < len(text); n++ {
				x = append(x, model.embed(text[n]))
				if n%pageSize == 0 {
					// Pages go round as they are needed: those of a sequence do not lie in a row.
					table[s*width+n/pageSize] = used * 5 % pages
					used++
				}
			}
			ends = append(ends, int32(len(x)))
		}
		call, err := rope.PrepareCall(ctx, described, rope.Step{Batch: 1, Tokens: len(x), CuSeqlens: ends,
			Positions: rope.SeqOffsets(lengths), Slots: rope.PagedSlots(table, width, lengths),
			Norms: &rope.Norms{Q: norm, K: norm}})
		if err != nil {
			log.Fatal(err)
		}
		for layer := range layers {
			var packed []float32
			for _, x := range x {
				packed = append(packed, model.project(layer, x)...)
			}
			weights := &model.layers[layer]
			err := call.Apply(rope.Layer{Q: rope.ArrayOf(packed), K: rope.ArrayOf(packed[qHeads*dim:]),
				V: rope.ArrayOf(packed[qHeads*dim+row:]), CacheK: rope.ArrayOf(keys[layer]),
				CacheV: rope.ArrayOf(values[layer]), QNormWeight: rope.ArrayOf(weights.qNorm),
				KNormWeight: rope.ArrayOf(weights.kNorm)})
			if err != nil {
				log.Fatal(err)
			}
			for s := range texts {
				var slots []int
				for n := range len(texts[s]) {
					slots = append(slots, int(table[s*width+n/pageSize])*pageSize+n%pageSize)
				}
				for i := ends[s]; i < ends[s+1]; i++ {
					upTo := slots[:lengths[s]+i-ends[s]+1]
					model.finish(layer, attend(packed[i*packedRow:], keys[layer], values[layer], upTo), x[i])
				}
			}
		}
		call.Close()
		for s := range texts {
			lengths[s] = int32(len(texts[s]))
			texts[s] = append(texts[s], model.next(x[ends[s+1]-1]))
		}
	}
	for s, prompt := range prompts {
		plain := model.generatePlainly(ctx, prompt)
		fmt.Println(len(plain)-len(prompt), "tokens behind", len(prompt), "are those of plain code:",
			slices.Equal(texts[s], plain))
	}
	// Output:
	// 12 tokens behind 3 are those of plain code: true
	// 12 tokens behind 9 are those of plain code: true
}

// generatePlainly does the same for one sequence, token by token: norms of its own, a rotation without a cache, and
// keys and values in a row.
func (d *decoder) generatePlainly(ctx *rope.Context, prompt []int) []int {
	text := slices.Clone(prompt)
	var keys, values [layers][]float32
	var all []int
	for n := range len(prompt) + generated - 1 {
		x := d.embed(text[n])
		all = append(all, n)
		for layer := range layers {
			weights, packed := &d.layers[layer], d.project(layer, x)
			norm := func(part, weight []float32) (out []float32) {
				for head := range slices.Chunk(part, dim) {
					for c, x := range normed(head) {
						out = append(out, x*weight[c])
					}
				}
				return out
			}
			q, k := norm(packed[:qHeads*dim], weights.qNorm), norm(packed[qHeads*dim:][:row], weights.kNorm)
			step := rope.Step{Batch: 1, Tokens: 1, Positions: rope.Offset(int64(n))}
			if err := rope.ApplyQK(ctx, rope.BSHD(q, qHeads), rope.BSHD(k, heads), step); err != nil {
				log.Fatal(err)
			}
			keys[layer] = append(keys[layer], k...)
			values[layer] = append(values[layer], packed[qHeads*dim+row:]...)
			d.finish(layer, attend(q, keys[layer], values[layer], all), x)
		}
		if n+1 == len(text) {
			text = append(text, d.next(x))
		}
	}
	return text
}
