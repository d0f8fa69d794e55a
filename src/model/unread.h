// Keys that speak of RoPE and that nobody looked up. A configuration that says something about the
// rotation which this version did not understand must not be answered as if it had not said it: a
// wrong rotation gives fluent nonsense, and no error anywhere.
//
// The reader marks what it looks up (model/json.h). When it is done, whatever speaks of RoPE and is
// not marked is refused by name, unless its value is one of the few below that are known to change
// nothing, or the caller has accepted the key (model/accept.h). So a key is either read, or
// harmless, or accepted, or an error, in families that the table knows and in those that it does
// not.
#ifndef LIBROPE_SRC_MODEL_UNREAD_H_
#define LIBROPE_SRC_MODEL_UNREAD_H_

#include <string_view>

#include "model/json.h"

namespace rope::model {

// Whether one of the words of a key or of a label says rope, rotary or the like: rope_theta,
// use_mrope, rotary_pct, no_rope_layers, full_attention_nope.
bool SpeaksOfRope(std::string_view key);

// Whether a key says that a model may have RoPE. "position_embedding_type": "sine" speaks of
// positions, and says the contrary.
bool TellsOfRope(std::string_view key, const Value& value);

// Throws Error if a key of the text speaks of RoPE and is null: for programs that have a default
// for keys that are absent, and none for those, but for the key `except`.
void RejectNulls(const Dict& root, std::string_view except = "");

// Throws Error if a key of a model's configuration speaks of RoPE and was not read. `elsewhere`
// (may be absent) is another part of it: a key that repeats the one there is harmless.
void RejectUnread(const Dict& dict, const Dict& elsewhere = Dict());

// The same for the dictionaries inside `dict` that are called after the attention.
void RejectUnreadOfAttention(const Dict& dict, const Dict& elsewhere);

// Throws Error if any key of a rope dictionary was not read. `has_kinds`: its objects are
// dictionaries of kinds of layers, which have their own turn.
void RejectUnreadOfRope(const Dict& dict, bool has_kinds);

// Throws Error if a model that is found to have no RoPE says that it has: a kind of scaling, a
// switch that is on. Numbers such as rope_theta stand in files of such models, too.
void RejectRopeBesideNope(const Dict& text, const Dict& dict);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_UNREAD_H_
