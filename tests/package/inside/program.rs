//! What a new user of the crate does first: one rotation, checked.
use librope::{Config, Pairing, Positions, Step, ViewMut};

fn main() -> Result<(), librope::Error> {
    let rope = Config::new(64, 10_000.0, Pairing::Halves).build()?;
    let (mut q, mut k) = (vec![0.0f32; 64], vec![0.0f32; 64]);
    q[0] = 1.0;
    let step = Step::new(1, 1, Positions::Offset(3));
    rope.apply(&step, ViewMut::bshd(&mut q, 1), ViewMut::bshd(&mut k, 1))?;
    assert!((f64::from(q[0]) - 3f64.cos()).abs() < 1e-6);
    println!("{}", q[0]);
    Ok(())
}
