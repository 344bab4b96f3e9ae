//! The prefetch order: in which order blocks come that no operation waits for (gCROP, figure 11).

use std::collections::HashMap;

use fermata_terms::PrefetchOrder;

use crate::profile::Profile;
use crate::restore::blocks::Blocks;

/// All blocks, each once.
pub(in crate::restore) fn in_order(
    by: PrefetchOrder,
    blocks: &Blocks,
    profile: &Profile,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..blocks.all().len()).collect();
    if by == PrefetchOrder::Default {
        order.sort_by_key(|index| blocks.all()[*index].at);
        return order;
    }
    let mut place: HashMap<usize, usize> = HashMap::new();
    for (nth, at) in profile.order.iter().enumerate() {
        if let Some(block) = blocks.containing(*at) {
            place.entry(block).or_insert(nth);
        }
    }
    order.sort_by_key(|index| {
        let nth = place.get(index).copied().unwrap_or(usize::MAX);
        (nth, blocks.all()[*index].at)
    });
    if by == PrefetchOrder::Worst {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::Address;

    use super::*;
    use crate::restore::blocks::Block;

    #[test]
    fn blocks_used_before_come_first_and_the_worst_order_is_that_reversed() {
        let mut blocks = Blocks::default();
        for at in [300, 100, 200] {
            blocks.insert(Block::new(Address::from_raw(at), 10, 0));
        }
        let profile = Profile {
            order: [205, 999, 200, 300].map(Address::from_raw).to_vec(),
            ..Profile::default()
        };
        assert_eq!(
            in_order(PrefetchOrder::Profile, &blocks, &profile),
            [2, 0, 1]
        );
        assert_eq!(in_order(PrefetchOrder::Worst, &blocks, &profile), [1, 0, 2]);
        assert_eq!(
            in_order(PrefetchOrder::Default, &blocks, &profile),
            [1, 2, 0]
        );
        assert_eq!(
            in_order(PrefetchOrder::Profile, &blocks, &Profile::default()),
            [1, 2, 0]
        );
    }
}
