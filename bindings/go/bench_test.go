package rope

import (
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/cbaseline"
)

// side is one of two ways to make n calls, and its name.
type side struct {
	name string
	run  func(n int) time.Duration
}

// The medians of rounds that alternate between two sides, which noise of the machine hits alike. "+ns" is
// what the second adds to a call, and "ratio" the second by the first.
func compare(b *testing.B, calls int, first, second side) {
	var firsts, seconds, more []float64
	for round := 0; round < 51 || round < b.N; round++ {
		var x, y float64
		if round%2 == 0 {
			x = float64(first.run(calls)) / float64(calls)
			y = float64(second.run(calls)) / float64(calls)
		} else {
			y = float64(second.run(calls)) / float64(calls)
			x = float64(first.run(calls)) / float64(calls)
		}
		firsts, seconds, more = append(firsts, x), append(seconds, y), append(more, y-x)
		if round >= 50 {
			break
		}
	}
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(firsts), first.name+"-ns")
	b.ReportMetric(median(seconds), second.name+"-ns")
	b.ReportMetric(median(more), "+ns")
	b.ReportMetric(median(seconds)/median(firsts), "ratio")
}

// timed makes n calls.
func timed(b *testing.B, call func() error) func(n int) time.Duration {
	return func(n int) time.Duration {
		start := time.Now()
		for range n {
			if err := call(); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(start)
	}
}

func BenchmarkOverhead(b *testing.B) {
	const qHeads, kHeads, dim = 32, 8, 128
	for _, size := range []struct {
		name          string
		tokens, calls int
	}{{"decode", 1, 20000}, {"prefill64", 64, 300}, {"prefill512", 512, 40}} {
		c := mustNew(b, Config{HeadDim: dim, Theta: 500000, Pairing: PairingHalves})
		q, k := make([]BFloat16, size.tokens*qHeads*dim), make([]BFloat16, size.tokens*kHeads*dim)
		// The same memory for both: where buffers lie moves a prefill by more than any call costs.
		cq := unsafe.Slice((*uint16)(unsafe.SliceData(q)), len(q))
		ck := unsafe.Slice((*uint16)(unsafe.SliceData(k)), len(k))
		ids := make([]int64, size.tokens)
		for i := range ids {
			ids[i] = int64(1000 + i)
		}
		b.Run("ApplyQK/"+size.name, func(b *testing.B) {
			step := Step{Batch: 1, Tokens: size.tokens, Positions: Offset(1000)}
			compare(b, size.calls, side{"C", func(n int) time.Duration {
				return cbaseline.Full(n, size.tokens, cq, qHeads, ck, kHeads)
			}}, side{"Go", timed(b, func() error { return ApplyQK(c, BSHD(q, qHeads), BSHD(k, kHeads), step) })})
		})
		b.Run("ApplyTHD/"+size.name, func(b *testing.B) {
			compare(b, size.calls, side{"C", func(n int) time.Duration {
				return cbaseline.THD(n, ids, cq, qHeads, ck, kHeads)
			}}, side{"Go", timed(b, func() error { return ApplyTHD(c, ids, q, qHeads, k, kHeads) })})
		})
	}
}

// A layer of a decode step by ApplyQK and by a prepared call; "pass" is 32 layers, with Prepare and Close.
func BenchmarkPrepared(b *testing.B) {
	b.Run("float32", benchmarkPrepared[float32])
	b.Run("BFloat16", benchmarkPrepared[BFloat16])
}

func benchmarkPrepared[T Element](b *testing.B) {
	const qHeads, kHeads, dim, layers = 32, 8, 128, 32
	c := mustNew(b, Config{HeadDim: dim, Theta: 500000, Pairing: PairingHalves})
	for _, tokens := range []int{1, 64} {
		q, k := make([]T, tokens*qHeads*dim), make([]T, tokens*kHeads*dim)
		step := Step{Batch: 1, Tokens: tokens, Positions: Offset(1000)}
		plain := func() error { return ApplyQK(c, BSHD(q, qHeads), BSHD(k, kHeads), step) }
		name := map[int]string{1: "decode", 64: "prefill64"}[tokens]
		b.Run(name, func(b *testing.B) {
			p := mustPrepare(b, c, BSHD[T](nil, qHeads), BSHD[T](nil, kHeads), step)
			compare(b, 10000/tokens, side{"plain", timed(b, plain)},
				side{"prepared", timed(b, func() error { return p.Apply(q, k) })})
		})
		b.Run(name+"-pass", func(b *testing.B) {
			compare(b, max(1, 300/tokens), side{"plain", timed(b, func() error {
				for range layers {
					if err := plain(); err != nil {
						return err
					}
				}
				return nil
			})}, side{"prepared", timed(b, func() error {
				p, err := Prepare(c, BSHD[T](nil, qHeads), BSHD[T](nil, kHeads), step)
				if err != nil {
					return err
				}
				for range layers {
					if err := p.Apply(q, k); err != nil {
						return err
					}
				}
				return p.Close()
			})})
		})
	}
}

// A layer of a decode step that stores a token of k and v, by Append and by a prepared call.
func BenchmarkPreparedAppend(b *testing.B) {
	const qHeads, heads, dim, pages, pageSize = 32, 8, 128, 64, 16
	c := mustNew(b, Config{HeadDim: dim, Theta: 500000, Pairing: PairingHalves})
	q, k, v := make([]BFloat16, qHeads*dim), make([]BFloat16, heads*dim), make([]BFloat16, heads*dim)
	keys, values := make([]BFloat16, pages*pageSize*heads*dim), make([]BFloat16, pages*pageSize*heads*dim)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(1000), Slots: MappedSlots([]int32{1000})}
	cache := KVCache[BFloat16, BFloat16]{K: NHD(keys, heads), V: NHD(values, heads), Pages: pages, PageSize: pageSize}
	shapes := cache
	shapes.K.Data, shapes.V.Data = nil, nil
	head := BSHD[BFloat16](nil, heads)
	p := mustPrepareAppend(b, c, BSHD[BFloat16](nil, qHeads), head, head, shapes, step)
	compare(b, 10000, side{"plain", timed(b, func() error {
		return Append(c, BSHD(q, qHeads), BSHD(k, heads), BSHD(v, heads), cache, step)
	})}, side{"prepared", timed(b, func() error { return p.Apply(q, k, v, keys, values) })})
}

func BenchmarkApplyQKDecodeParallel(b *testing.B) {
	c := mustNew(b, Config{HeadDim: 128, Theta: 500000, Pairing: PairingHalves})
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(1000)}
	b.RunParallel(func(pb *testing.PB) {
		q, k := make([]BFloat16, 32*128), make([]BFloat16, 8*128)
		for pb.Next() {
			if err := ApplyQK(c, BSHD(q, 32), BSHD(k, 8), step); err != nil {
				b.Fatal(err)
			}
		}
	})
}
