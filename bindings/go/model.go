package rope

// #include "shim.h"
import "C"

import (
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// Model is a model's config.json or GGUF file: its kinds of RoPE, and which layer is of which kind. Any number of
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
// say clearly is an ErrParse. The text may be changed afterwards. acceptedKeys are keys that the caller
// knows to change nothing, by name ("attn_factor") or path ("text_config.rope_scaling.attn_factor"):
// the text is not refused because of them. A name that spares no key is an ErrInvalidArgument.
//
//	model, err := rope.FromJSON(text)
//	if err != nil { ... }
//	defer model.Close()
//	contexts, err := model.Contexts(seqLen)
//	...
//	kind, err := model.LayerType(layer) // this layer uses contexts[kind]
func FromJSON(json []byte, acceptedKeys ...string) (*Model, error) {
	var names []byte // each with its final 0
	for i, key := range acceptedKeys {
		if strings.IndexByte(key, 0) >= 0 {
			return nil, invalid("FromJSON", "acceptedKeys[%d] (%q) must not have a NUL character", i, key)
		}
		names = append(append(names, key...), 0)
	}
	numbers := narrow{function: "FromJSON"}
	count := numbers.int32("len(acceptedKeys)", len(acceptedKeys))
	if numbers.err != nil {
		return nil, numbers.err
	}
	return newModel("FromJSON", func(out **C.rope_model) *C.ropego_error {
		return C.ropego_model_create(bytesOf(json), C.size_t(len(json)),
			(*C.char)(unsafe.Pointer(unsafe.SliceData(names))), count, out)
	})
}

// FromGGUF reads the metadata of a GGUF file from its bytes, or from those at its beginning: the weights
// are not needed. What it does not say clearly is an ErrParse; an architecture that is not read, and a
// key of RoPE that is not, an ErrUnsupported. The bytes may be changed afterwards.
func FromGGUF(data []byte) (*Model, error) {
	return newModel("FromGGUF", func(out **C.rope_model) *C.ropego_error {
		return C.ropego_model_create_gguf(bytesOf(data), C.size_t(len(data)), out)
	})
}

// LoadGGUF is FromGGUF for a file, of which it reads as much as it needs. A file that cannot be read is an
// ErrInvalidArgument.
func LoadGGUF(path string) (*Model, error) {
	if strings.ContainsRune(path, 0) {
		return nil, invalid("LoadGGUF", "path (%q) must not contain a zero byte", path)
	}
	name := append([]byte(path), 0)
	return newModel("LoadGGUF", func(out **C.rope_model) *C.ropego_error {
		return C.ropego_model_load_gguf((*C.char)(unsafe.Pointer(unsafe.SliceData(name))), out)
	})
}

// bytesOf is where they lie: an empty text is not a missing one.
func bytesOf(text []byte) *C.uint8_t {
	if data := (*C.uint8_t)(unsafe.SliceData(text)); data != nil {
		return data
	}
	return new(C.uint8_t)
}

func newModel(function string, create func(**C.rope_model) *C.ropego_error) (*Model, error) {
	if err := compatible(); err != nil {
		return nil, err
	}
	b := new(body[modelState])
	state := &b.value
	if err := check(function, create(&state.ptr)); err != nil {
		return nil, err
	}
	m := new(Model)
	m.handle.set(b, (*modelState).destroy,
		runtime.AddCleanup(b, destroyModel, uintptr(unsafe.Pointer(state.ptr))))
	for t := C.int32_t(0); t < C.rope_model_layer_type_count(state.ptr); t++ {
		name := C.GoString(C.rope_model_layer_type_name(state.ptr, t))
		state.types = append(state.types, name)
	}
	return m, nil
}

func (s *modelState) destroy() { C.rope_model_destroy(s.ptr) }

func destroyModel(ptr uintptr) {
	C.rope_model_destroy(*(**C.rope_model)(unsafe.Pointer(&ptr)))
}

// Close gives the model up: later calls return an ErrClosed. Configs and contexts made from it live on.
// Its memory is freed now, or by the last of the calls that are under way. Closing twice is allowed, and
// so is closing nil.
func (m *Model) Close() error {
	m.ref().close()
	return nil
}

// ref is the handle, which nil has not.
func (m *Model) ref() *handle[modelState] {
	if m == nil {
		return nil
	}
	return &m.handle
}

// LayerTypes names the kinds of RoPE, at least one: "full_attention", "sliding_attention", "nope",
// "vision", ... After Close there is none.
func (m *Model) LayerTypes() []string {
	state := m.ref().peek()
	if state == nil {
		return nil
	}
	return slices.Clone(state.types)
}

// Notes returns what the text says that programs treat differently and that is no part of a Config
// (dual_chunk_attention_config), and how a text of another program than transformers was read.
func (m *Model) Notes() ([]string, error) {
	use, open := m.ref().enter()
	if !open {
		return nil, closed("Notes", "the Model m")
	}
	defer use.leave()
	var notes []string
	for {
		note := C.rope_model_note(use.body.value.ptr, C.int32_t(len(notes)))
		if note == nil {
			return notes, nil
		}
		notes = append(notes, C.GoString(note))
	}
}

// LayerType returns the kind of one layer of the language model: an index into LayerTypes and
// Contexts. Layers without RoPE have a kind like any other.
func (m *Model) LayerType(layer int) (int, error) {
	use, open := m.ref().enter()
	if !open {
		return 0, closed("LayerType", "the Model m")
	}
	defer use.leave()
	numbers := narrow{function: "LayerType"}
	number := numbers.int32("layer", layer)
	if numbers.err != nil {
		return 0, numbers.err
	}
	var kind C.int32_t
	err := check("LayerType", C.ropego_model_layer_type(use.body.value.ptr, number, &kind))
	return int(kind), err
}

// Digest is that of one kind, Config.Digest of its configuration; with -1 that of the model: which RoPE each
// layer has, and the kinds that no layer has, by name. Two models with equal digests rotate alike, whatever
// their texts look like: docs/digest.md.
func (m *Model) Digest(layerType int, same Digest) (string, error) {
	use, open := m.ref().enter()
	if !open {
		return "", closed("Digest", "the Model m")
	}
	defer use.leave()
	numbers := narrow{function: "Digest"}
	number := numbers.int32("layerType", layerType)
	if numbers.err != nil {
		return "", numbers.err
	}
	digest := new(C.rope_digest_text)
	err := check("Digest", C.ropego_model_digest(use.body.value.ptr, number, C.rope_digest(same), digest))
	if err != nil {
		return "", err
	}
	return C.GoString(&digest.text[0]), nil
}

// Config returns the configuration of one kind, for what is the program's to add: SeqLen, Rounding. A
// number of the text that is replaced in it (Theta, Factor, HeadDim, ..) does not take along what followed
// from it, such as AttentionFactor, RotaryDim, FreqFactors, or what a note says: change the text instead.
func (m *Model) Config(layerType int) (Config, error) {
	use, open := m.ref().enter()
	if !open {
		return Config{}, closed("Config", "the Model m")
	}
	defer use.leave()
	return use.body.value.config(layerType)
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
		err = c.read("Config", raw) // the tables are the model's
	}
	return c, err
}

// Contexts makes one context per kind, right for a sequence of seqLen tokens: how many there are when
// attention runs. Kinds whose frequencies depend on it (Config.NeedsSeqLen) need it; if the model has
// none of them, it may be 0. As the sequence grows, the contexts stay right below
// the smallest ValidBelow of them, and are made anew there. For a new, shorter sequence they are right from
// the largest ValidFrom on:
//
//	for length := prompt; ; length++ {
//		if length >= validBelow {
//			old := contexts
//			contexts, err = model.Contexts(length)
//			... // keys that are cached move from old to contexts here, if they do
//			for _, c := range old {
//				c.Close()
//			}
//			validBelow = math.MaxInt64
//			for _, c := range contexts {
//				validBelow = min(validBelow, c.ValidBelow())
//			}
//		}
//		...
//	}
func (m *Model) Contexts(seqLen int64) ([]*Context, error) {
	use, open := m.ref().enter()
	if !open {
		return nil, closed("Contexts", "the Model m")
	}
	defer use.leave()
	state := &use.body.value
	contexts := make([]*Context, len(state.types))
	for t := range contexts {
		cfg, err := state.config(t)
		if err == nil {
			cfg.SeqLen = seqLen // the library ignores it where nothing depends on it
			contexts[t], err = create("Contexts", []Config{cfg}, false)
		}
		if err != nil {
			for _, made := range contexts {
				made.Close()
			}
			return nil, err
		}
	}
	return contexts, nil
}
