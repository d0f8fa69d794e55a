"""A user's program for mypy --strict, which run-tests runs: what is right passes, what is wrong does
not (an ignore that is not needed is an error). Not a pytest file."""

import array

import librope

rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", scaling="yarn", factor=2.0, layout="thd")
x = array.array("f", [0.0] * 8)
a, b = rope.apply_qk(x, positions=0)
c, d = rope.apply_qk(x, x, 0, operation="inverse")
d.append(1.0)
b.append(1.0)  # type: ignore[attr-defined]
rope.apply(x, 0, layout="td", out=x).append(1.0)
prepared: librope.PreparedCall = rope.prepare_qk(x, None, 0, operation="inverse", out=(x, None))
e, f = prepared.apply_qk(x, x, out=(x, x))
e.append(1.0)
prepared.apply_qk(x)[1].append(1.0)  # type: ignore[attr-defined]
rope.prepare_qk(x, None, 0, operaton="inverse")  # type: ignore[call-overload]
cache = librope.KVCache(x, x, layout="nd", starts=0)
g, h = rope.apply_qk(x, x, 0, v=x, cache=cache.at(slots=[3]), out=(x, x, x))
g.append(1.0)
h.append(1.0)  # type: ignore[union-attr]
rope.apply_qk_(x, x, 0, v=x, cache=cache)
rope.bind(x, x, 0, v=x, cache=cache)()
append: librope.PreparedAppend = rope.prepare_qk(x, x, 0, v=x, cache=cache)
append.apply_qk(x, x, v=x, cache=cache)[0].append(1.0)
append.apply_qk_(x, x, v=x, cache=(x, x))  # type: ignore[arg-type]
rope.apply_qk(x, x, 0, cache=(x, x))  # type: ignore[call-overload]
librope.KVCache(x, x, starts=0)  # type: ignore[call-arg]
scales = librope.Scales(q=librope.Scale(0.5), rest=librope.Scale(data=x, computed=True))
rope.apply_qk(x, None, 0, rest=x, out=(x, None, None, x), scales=scales)
rope.apply(x, 0, out=x, scales=scales)
rope.prepare_qk(x, None, 0, out=(x, None), scales=scales).apply_qk(x, out=(x, None), scales=scales)
rope.apply_(x, 0, scales=scales)  # type: ignore[call-arg]
librope.Scales(0.5)  # type: ignore[arg-type]
norms = librope.Norms(librope.Norm(x, kind="rms", eps=1e-6), v=librope.Norm(kind="rms_plain", eps=1e-6))
rope.apply_qk_(x, x, 0, v=x, cache=cache, norms=norms)
rope.apply(x, 0, norms=norms)
normed: librope.PreparedAppend = rope.prepare_qk(x, x, 0, norms=norms, operation="inverse")
normed.apply_qk(x, x, norms=norms)[0].append(1.0)
normed.apply_qk_(x, x, v=x, cache=cache, norms=norms)
normed.apply_qk_(x, x, norms=norms.q)  # type: ignore[arg-type]
rope.prepare_qk(x, x, 0, norms=norms.q)  # type: ignore[arg-type]
librope.Norm(x, kind="rsm", eps=1e-6)  # type: ignore[arg-type]
rope.apply_qk(x, x, 0, norms=norms.q)  # type: ignore[arg-type]
librope.Rope(head_dim=8, scaling="nope")
librope.Rope(head_dim=8, theta=1e4)  # type: ignore[call-overload]
librope.Rope(head_dim=8, theta=1e4, pairing="halfs")  # type: ignore[call-overload]
librope.Rope(head_dim=8, pairing="halves", factr=1.0)  # type: ignore[call-overload]
rope.apply(x, 0, operaton="inverse")  # type: ignore[call-arg]
rope.apply_(x, 0, operation="undo")  # type: ignore[arg-type]
rope.replace(angle="exakt")  # type: ignore[arg-type]
librope.Rope.from_config({}, seq_len=3, rounding="eager")
librope.Rope.from_config({}, thata=1e4)  # type: ignore[call-arg]
