//! Caches of random forms, the ways to find slots in them, and what they hold after a call.

use librope::{Layout, Pages, Shape, Slots, Strides};

use super::{Number, Random};

/// Pages of slots, and where in their memory a head begins.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    layout: Layout,
    heads: usize,
    dim: usize,
    page_size: usize,
    pub len: usize,
}

impl Form {
    pub fn new(random: &mut Random, [pages, page_size, heads, dim]: [usize; 4]) -> Form {
        let exact = pages * page_size * heads * dim;
        let (layout, len) = match random.below(3) {
            0 => (Layout::Nhd, exact),
            1 => (Layout::Hnd, exact),
            _ => {
                let head = dim + random.below(5);
                let token = heads * head + random.below(5);
                let batch = page_size * token + 3;
                (Layout::Strided(Strides { batch, token, head }), pages * batch + random.below(9))
            }
        };
        Form { layout, heads, dim, page_size, len }
    }

    pub fn pages<T: Number>(self, data: &mut [T]) -> Pages<'_, T> {
        match self.layout {
            Layout::Nhd => Pages::nhd(data, self.heads),
            Layout::Hnd => Pages::hnd(data, self.heads),
            Layout::Strided(strides) => Pages::strided(data, self.heads, strides),
            other => panic!("{other:?}"),
        }
    }

    /// The same without a slice.
    pub fn shape<T: Number>(self) -> Shape<T> {
        Shape::new(self.layout, self.heads)
    }

    fn at(self, slot: usize, head: usize) -> usize {
        let (heads, dim, size) = (self.heads, self.dim, self.page_size);
        let s = match self.layout {
            Layout::Nhd => Strides { batch: size * heads * dim, token: heads * dim, head: dim },
            Layout::Hnd => Strides { batch: heads * size * dim, token: dim, head: size * dim },
            Layout::Strided(s) => s,
            other => panic!("{other:?}"),
        };
        slot / size * s.batch + slot % size * s.token + head * s.head
    }

    /// What the memory holds after these heads, `[tokens, heads, dim]`, have been stored.
    pub fn after<T: Number>(self, before: &[T], heads: &[T], slots: &[Option<usize>]) -> Vec<T> {
        let mut after = before.to_vec();
        for (token, slot) in heads.chunks(self.heads * self.dim).zip(slots) {
            for (h, head) in token.chunks(self.dim).enumerate() {
                let Some(slot) = *slot else { continue };
                after[self.at(slot, h)..][..self.dim].copy_from_slice(head);
            }
        }
        after
    }
}

/// The arrays of one way to find slots, and the slot of each token.
pub struct Places {
    kind: usize,
    numbers: Vec<i64>,
    narrow: Vec<i32>,
    table: Vec<i32>,
    page_starts: Vec<i32>,
    width: usize,
    starts: Vec<i32>,
    pub slots: Vec<Option<usize>>,
}

impl Places {
    /// Of sequences with these numbers of tokens.
    pub fn new(random: &mut Random, [pages, page_size]: [usize; 2], lengths: &[usize]) -> Places {
        let tokens = lengths.iter().sum();
        let mut p = Places {
            kind: random.below(5),
            numbers: Vec::new(),
            narrow: Vec::new(),
            table: Vec::new(),
            page_starts: vec![0],
            width: 0,
            starts: Vec::new(),
            slots: Vec::new(),
        };
        let mut free: Vec<usize> = (0..pages).collect();
        let mut take = |random: &mut Random| free.swap_remove(random.below(free.len()));
        match p.kind {
            0 | 1 => {
                let mut all: Vec<usize> = (0..pages * page_size).collect();
                for _ in 0..tokens {
                    let slot = all.swap_remove(random.below(all.len()));
                    p.slots.push((random.below(5) != 0).then_some(slot));
                }
                p.numbers = p.slots.iter().map(|s| s.map_or(-7, |slot| slot as i64)).collect();
                if random.below(4) == 0 {
                    let padding = 1 + random.below(tokens)..;
                    p.numbers[padding.clone()].fill(-1);
                    p.slots[padding].fill(None);
                } else if random.below(4) == 0 {
                    p.numbers.push(i64::MAX); // of no token
                }
                p.narrow = p.numbers.iter().map(|&n| n as i32).collect();
            }
            2 | 3 => {
                let mut rows = Vec::new();
                for &length in lengths {
                    let start = random.below(page_size + 1);
                    let mut row: Vec<i32> = (0..(start + length).div_ceil(page_size))
                        .map(|_| take(random) as i32)
                        .collect();
                    if random.below(6) == 0 {
                        row[start / page_size] = -1;
                    }
                    for n in start..start + length {
                        let page = usize::try_from(row[n / page_size]).ok();
                        p.slots.push(page.map(|page| page * page_size + n % page_size));
                    }
                    p.starts.push(start as i32);
                    rows.push(row);
                }
                p.width = rows.iter().map(Vec::len).max().unwrap();
                for mut row in rows {
                    if p.kind == 2 {
                        row.resize(p.width, i32::MAX); // which no token needs
                    }
                    p.table.append(&mut row);
                    p.page_starts.push(p.table.len() as i32);
                }
            }
            _ => {
                for (s, &length) in lengths.iter().enumerate() {
                    let start = random.below(page_size - length + 1);
                    p.slots.extend((start..start + length).map(|n| Some(s * page_size + n)));
                    p.starts.push(start as i32);
                }
            }
        }
        p
    }

    pub fn slots(&self) -> Slots<'_> {
        match self.kind {
            0 => Slots::mapped(&self.numbers),
            1 => Slots::mapped(&self.narrow),
            2 => Slots::paged(&self.table, self.width, &self.starts),
            3 => Slots::ragged(&self.table, &self.page_starts, &self.starts),
            _ => Slots::linear(&self.starts),
        }
    }
}
