package rope

// #include "shim.h"
import "C"

import (
	"runtime"
	"slices"
	"unsafe"
)

// Model is a model's config.json: its kinds of RoPE, and which layer is of which kind. Any number of
// goroutines may use one at once, and any of them may close it.
type Model struct {
	handle handle[modelState]
}

type modelState struct {
	ptr   *C.rope_model
	types []string
}

// FromJSON reads a model's config.json, or its rope_parameters (rope_scaling) dictionary alone, which
// has no layers and leaves HeadDim and Pairing to the caller. The text is untrusted; what it does not
// say clearly is an ErrParse. The text may be changed afterwards.
//
//	model, err := rope.FromJSON(text)
//	if err != nil { ... }
//	defer model.Close()
//	contexts, err := model.Contexts(seqLen)
//	...
//	kind, err := model.LayerType(layer) // this layer uses contexts[kind]
func FromJSON(json []byte) (*Model, error) {
	if err := compatible(); err != nil {
		return nil, err
	}
	data := (*C.uint8_t)(unsafe.SliceData(json))
	if data == nil {
		data = new(C.uint8_t) // an empty text is not a missing one
	}
	state := new(modelState)
	err := check("FromJSON", C.ropego_model_create(data, C.size_t(len(json)), &state.ptr))
	if err != nil {
		return nil, err
	}
	runtime.AddCleanup(state, destroyModel, uintptr(unsafe.Pointer(state.ptr)))
	for t := C.int32_t(0); t < C.rope_model_layer_types(state.ptr); t++ {
		name := C.GoString(C.rope_model_layer_type_name(state.ptr, t))
		state.types = append(state.types, name)
	}
	m := new(Model)
	m.handle.set(state)
	return m, nil
}

func destroyModel(ptr uintptr) {
	C.rope_model_destroy(*(**C.rope_model)(unsafe.Pointer(&ptr)))
}

// Close gives the model up: later calls return ErrClosed. Configs and contexts made from it live on.
// Closing twice is allowed.
func (m *Model) Close() error {
	m.handle.drop()
	return nil
}

// LayerTypes names the kinds of RoPE, at least one: "full_attention", "sliding_attention", "nope",
// "vision", ... After Close there is none.
func (m *Model) LayerTypes() []string {
	state := m.handle.get()
	if state == nil {
		return nil
	}
	return slices.Clone(state.types)
}

// LayerType returns the kind of one layer of the language model: an index into LayerTypes and
// Contexts. Layers without RoPE have a kind like any other.
func (m *Model) LayerType(layer int) (int, error) {
	state := m.handle.get()
	if state == nil {
		return 0, ErrClosed
	}
	numbers := narrow{function: "LayerType"}
	number := numbers.int32("layer", layer)
	if numbers.err != nil {
		return 0, numbers.err
	}
	var kind C.int32_t
	err := check("LayerType", C.ropego_model_layer_type(state.ptr, number, &kind))
	runtime.KeepAlive(state)
	return int(kind), err
}

// Config returns the configuration of one kind, for what is the program's to add: SeqLen, Rounding.
func (m *Model) Config(layerType int) (Config, error) {
	state := m.handle.get()
	if state == nil {
		return Config{}, ErrClosed
	}
	return state.config(layerType)
}

func (s *modelState) config(layerType int) (Config, error) {
	var c Config
	numbers := narrow{function: "Config"}
	number := numbers.int32("layerType", layerType)
	if numbers.err != nil {
		return c, numbers.err
	}
	raw := new(C.rope_config)
	err := check("Config", C.ropego_model_config(s.ptr, number, raw))
	if err == nil {
		c.read(raw) // the tables are the model's
	}
	runtime.KeepAlive(s)
	return c, err
}

// Contexts makes one context per kind, right for a sequence of seqLen tokens: how many there are when
// attention runs. Kinds whose frequencies depend on it (Config.NeedsSeqLen) need it; if the model has
// none of them, it is not looked at and may be 0. As the sequence grows, the contexts stay right below
// the smallest ValidBelow of them, and are made anew there:
//
//	for length := prompt; ; length++ {
//		if length >= validBelow {
//			contexts, err = model.Contexts(length)
//			...
//			validBelow = math.MaxInt64
//			for _, c := range contexts {
//				validBelow = min(validBelow, c.ValidBelow())
//			}
//		}
//		...
//	}
func (m *Model) Contexts(seqLen int64) ([]*Context, error) {
	state := m.handle.get()
	if state == nil {
		return nil, ErrClosed
	}
	contexts := make([]*Context, len(state.types))
	for t := range contexts {
		cfg, err := state.config(t)
		if err != nil {
			return nil, err
		}
		if cfg.NeedsSeqLen() {
			cfg.SeqLen = seqLen
		}
		if contexts[t], err = create("Contexts", []Config{cfg}, false); err != nil {
			return nil, err
		}
	}
	return contexts, nil
}
