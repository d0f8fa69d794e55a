package rope

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Model is a model's config.json: its kinds of RoPE, and which layer is of which kind. Any number of
// goroutines may use one at once; only Close needs it alone.
type Model struct {
	ptr     *C.rope_model
	cleanup runtime.Cleanup
	types   []string
}

// FromJSON reads a model's config.json, or its rope_parameters (rope_scaling) dictionary alone, which
// has no layers and leaves HeadDim and Pairing to the caller. The text is untrusted; what it does not
// say clearly is an ErrParse. The text may be changed afterwards.
//
//	model, err := rope.FromJSON(text)
//	if err != nil { ... }
//	defer model.Close()
//	contexts, err := model.Contexts()
//	...
//	kind, err := model.LayerType(layer) // this layer uses contexts[kind]
func FromJSON(json []byte) (*Model, error) {
	data := (*C.uint8_t)(unsafe.SliceData(json))
	if data == nil {
		data = new(C.uint8_t) // an empty text is not a missing one
	}
	m := new(Model)
	if err := check(C.ropego_model_create(data, C.size_t(len(json)), &m.ptr)); err != nil {
		return nil, err
	}
	m.cleanup = runtime.AddCleanup(m, destroyModel, uintptr(unsafe.Pointer(m.ptr)))
	for t := C.int32_t(0); t < C.rope_model_layer_types(m.ptr); t++ {
		m.types = append(m.types, C.GoString(C.rope_model_layer_type_name(m.ptr, t)))
	}
	return m, nil
}

func destroyModel(ptr uintptr) {
	C.rope_model_destroy(*(**C.rope_model)(unsafe.Pointer(&ptr)))
}

// Close frees the model. Configs and contexts made from it live on. Closing twice is allowed.
func (m *Model) Close() error {
	if m.ptr != nil {
		m.cleanup.Stop()
		C.rope_model_destroy(m.ptr)
		m.ptr = nil
	}
	return nil
}

// LayerTypes names the kinds of RoPE, at least one: "full_attention", "sliding_attention", "nope",
// "vision", ...
func (m *Model) LayerTypes() []string { return append([]string(nil), m.types...) }

// LayerType returns the kind of one layer of the language model: an index into LayerTypes and
// Contexts. Layers without RoPE have a kind like any other.
func (m *Model) LayerType(layer int) (int, error) {
	if m.ptr == nil {
		return 0, ErrClosed
	}
	var kind C.int32_t
	err := check(C.ropego_model_layer_type(m.ptr, int32Of(layer), &kind))
	runtime.KeepAlive(m)
	return int(kind), err
}

// Config returns the configuration of one kind, for what is the program's to add: SeqLen, Rounding.
func (m *Model) Config(layerType int) (Config, error) {
	var c Config
	if m.ptr == nil {
		return c, ErrClosed
	}
	raw := new(C.rope_config)
	err := check(C.ropego_model_config(m.ptr, int32Of(layerType), raw))
	if err == nil {
		c.read(raw) // the tables are the model's
	}
	runtime.KeepAlive(m)
	return c, err
}

// Contexts makes one context per kind, from the configurations as they are.
func (m *Model) Contexts() ([]*Context, error) {
	contexts := make([]*Context, 0, len(m.types))
	for t := range m.types {
		cfg, err := m.Config(t)
		if err == nil {
			var c *Context
			if c, err = New(cfg); err == nil {
				contexts = append(contexts, c)
				continue
			}
		}
		for _, c := range contexts {
			c.Close()
		}
		return nil, err
	}
	return contexts, nil
}

// Run is text, then at most one image or video, as a prompt of a multimodal model holds them.
type Run struct {
	Text      int64 // tokens of text
	T, H, W   int32 // grid of visual tokens, after merging; T = 0: none
	TInterval int32 // ids from one frame to the next; 0: 1
}

// RunIDs returns the ids of a multimodal prompt (get_rope_index of Qwen-VL and relatives), beginning
// at start: ids[3, tokens] for AxesBatchTokenIDs, and the id of the token after them, where decoding
// continues.
func RunIDs(runs []Run, start int64) (ids []int64, next int64, err error) {
	flat := make([]int64, 0, 5*len(runs))
	tokens := uint64(0)
	for _, r := range runs {
		visual := uint64(0)
		if r.T > 0 && r.H > 0 && r.W > 0 {
			visual = uint64(r.T) * uint64(r.H) // below 2^62
			if visual > 1<<40 || uint64(r.W) > 1<<20 {
				return nil, 0, invalid("a grid of %d x %d x %d is beyond reason", r.T, r.H, r.W)
			}
			visual *= uint64(r.W)
		}
		if tokens += visual + uint64(max(0, r.Text)); tokens > 1<<40 {
			return nil, 0, invalid("the runs have more than 2^40 tokens")
		}
		flat = append(flat, r.Text, int64(r.T), int64(r.H), int64(r.W), int64(r.TInterval))
	}
	ids = make([]int64, 3*tokens)
	out := (*C.int64_t)(unsafe.SliceData(ids))
	if out == nil {
		out = new(C.int64_t)
	}
	var last C.int64_t
	err = check(C.ropego_run_ids((*C.int64_t)(unsafe.SliceData(flat)), int32Of(len(runs)),
		C.int64_t(start), out, C.int64_t(tokens), &last))
	if err != nil {
		return nil, 0, err
	}
	return ids, int64(last), nil
}

// Pool is librope's own threads for calls that move more than 128 KiB, which are cut into tasks of
// about 64 KiB. Everything else runs on the calling thread. Concurrent calls take turns; only Close
// needs it alone.
type Pool struct {
	ptr     *C.rope_pool
	cleanup runtime.Cleanup
}

// NewPool starts a pool. threads says how many work, the caller's included; 0: one per CPU.
func NewPool(threads int) (*Pool, error) {
	p := new(Pool)
	if err := check(C.ropego_pool_create(int32Of(threads), &p.ptr)); err != nil {
		return nil, err
	}
	p.cleanup = runtime.AddCleanup(p, destroyPool, uintptr(unsafe.Pointer(p.ptr)))
	return p, nil
}

func destroyPool(ptr uintptr) {
	C.rope_pool_destroy(*(**C.rope_pool)(unsafe.Pointer(&ptr)))
}

// Close ends the threads. Closing twice is allowed.
func (p *Pool) Close() error {
	if p.ptr != nil {
		p.cleanup.Stop()
		C.rope_pool_destroy(p.ptr)
		p.ptr = nil
	}
	return nil
}
