//! Which ranks form a group, and how a group's data and parity lie across its members.
//!
//! ```text
//!  four members, one loss             stripe 0   stripe 1   stripe 2   stripe 3
//!   member 0: its blocks 0 1 2 ...     parity     0          0          0
//!   member 1                           0          parity     1          1
//!   member 2                           1          1          parity     2
//!   member 3                           2          2          2          parity      next window: 3 4 5
//! ```
//! A window has one stripe for each member; a stripe has `losses` members that hold parity, the others give
//! one block of their data each. So every member holds as much parity as any other, and whichever members
//! are lost, every stripe loses one block for each: `losses` of them can be computed again from the rest.

/// The geometry of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stripes {
    pub(crate) members: usize,
    pub(crate) losses: usize,
    /// Bytes of a block.
    pub(crate) block: u64,
}

/// Longest block, in bytes; a group of n needs n of them at a time.
const LONGEST_BLOCK: u64 = 1 << 20;
/// The code works on multiples of this.
const UNIT: u64 = 64;

impl Stripes {
    /// For streams of at most `longest` bytes.
    pub(crate) fn new(members: usize, losses: usize, longest: u64) -> Self {
        let givers = (members - losses) as u64;
        let even = longest.div_ceil(givers).next_multiple_of(UNIT);
        Self {
            members,
            losses,
            block: even.clamp(UNIT, LONGEST_BLOCK),
        }
    }

    /// Members that give a block to a stripe.
    pub(crate) fn givers(&self) -> usize {
        self.members - self.losses
    }

    /// Windows for streams of at most `longest` bytes.
    pub(crate) fn windows(&self, longest: u64) -> u64 {
        longest.div_ceil(self.block * self.givers() as u64)
    }

    /// The members that hold a stripe's parity, in the order of its rows.
    pub(crate) fn holding(&self, stripe: usize) -> impl Iterator<Item = usize> + use<> {
        let members = self.members;
        (0..self.losses).map(move |row| (stripe + row) % members)
    }

    /// The members that give data to a stripe, in the code's order.
    pub(crate) fn giving(&self, stripe: usize) -> impl Iterator<Item = usize> + use<> {
        let members = self.members;
        (self.losses..members).map(move |i| (stripe + i) % members)
    }

    /// The block of a stream of `length` bytes that its member gives to a stripe of a window: offset, and
    /// bytes, none at all when the stream has ended.
    pub(crate) fn given(
        &self,
        window: u64,
        stripe: usize,
        member: usize,
        length: u64,
    ) -> (u64, usize) {
        let before = (0..stripe).filter(|s| self.giving(*s).any(|m| m == member));
        let number = window * self.givers() as u64 + before.count() as u64;
        let offset = number * self.block;
        (
            offset,
            length.saturating_sub(offset).min(self.block) as usize,
        )
    }
}

/// Groups of `size` ranks or a few more; ranks of one host are in different groups as far as they reach.
pub(crate) fn groups(hosts: &[Vec<u8>], size: usize) -> Vec<Vec<u32>> {
    let count = (hosts.len() / size.max(1)).max(1);
    let mut by_host: Vec<usize> = (0..hosts.len()).collect();
    by_host.sort_by_key(|rank| (&hosts[*rank], *rank));
    let mut groups = vec![Vec::new(); count];
    for (i, rank) in by_host.into_iter().enumerate() {
        groups[i % count].push(rank as u32);
    }
    for group in &mut groups {
        group.sort_unstable();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_given_whole_and_in_order() {
        for (members, losses) in [(2, 1), (3, 1), (3, 2), (5, 2), (8, 3)] {
            for length in [0, 1, 63, 64, 65, 5_000_000, 9 << 20] {
                let stripes = Stripes::new(members, losses, length);
                for member in 0..members {
                    let mut at = 0;
                    for window in 0..stripes.windows(length) {
                        for stripe in 0..members {
                            if !stripes.giving(stripe).any(|m| m == member) {
                                continue;
                            }
                            let (offset, bytes) = stripes.given(window, stripe, member, length);
                            assert!(bytes == 0 || offset == at);
                            at += bytes as u64;
                        }
                    }
                    assert_eq!(at, length, "{members} {losses} {length}");
                }
            }
        }
    }

    #[test]
    fn every_loss_leaves_enough_of_every_stripe() {
        let stripes = Stripes::new(6, 2, 1000);
        for stripe in 0..6 {
            let mut all: Vec<_> = stripes
                .holding(stripe)
                .chain(stripes.giving(stripe))
                .collect();
            assert_eq!(stripes.giving(stripe).count(), 4);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn members_sit_on_different_hosts() {
        let hosts = |names: &str| names.bytes().map(|b| vec![b]).collect::<Vec<_>>();
        for (names, size, count) in [
            ("aabb", 2, 2),
            ("aabbccdd", 4, 2),
            ("abababab", 2, 4),
            ("aabbc", 2, 2),
        ] {
            let hosts = hosts(names);
            let groups = groups(&hosts, size);
            assert_eq!(groups.len(), count, "{names}");
            for group in &groups {
                assert!(group.len() >= size, "{names}");
                let mut on: Vec<_> = group.iter().map(|r| &hosts[*r as usize]).collect();
                on.sort_unstable();
                on.dedup();
                assert!(
                    on.len() == group.len() || names == "abababab",
                    "{names}: {group:?}"
                );
            }
        }
        assert_eq!(groups(&hosts("abc"), 4), [[0, 1, 2]]);
    }
}
