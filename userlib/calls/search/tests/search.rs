//! The search, with members on nodes of the software card.

mod support;

use netvm_calls::{Aggregation, CallsConfig};
use netvm_search::hex::{Hex, Hex11};
use netvm_search::{Error, Game, MemberConfig, Outcome, Player, Search, SearchConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::time::Duration;
use support::{Ladder, Noughts, nodes, patient, ports, search_with};

#[test]
fn visits_are_conserved() {
    // Members on one node, on a node each, and two on one of two.
    for (nodes, members) in [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)] {
        search_with::<Hex11, _>(nodes, members, SearchConfig::default().simulations(2), |search| {
            search.begin(Hex11::new()).unwrap();
            let mut total = 0;
            for visits in [1, 0, 300, 1200] {
                let phase = search.phase(visits).unwrap();
                total += visits;
                assert_eq!(phase.visits, total);
                let census = search.census().unwrap();
                assert_eq!(census.evaluated, u64::from(total));
                assert_eq!(census.simulations, 2 * u64::from(total));
                // Every visit of a board that is far from full makes a node.
                assert_eq!(census.nodes, u64::from(total));
                assert!(members == 1 || census.calls > 0 || total == 1, "{census:?}");
            }
            if members > 1 {
                let census = search.census().unwrap();
                assert!(census.leaves.0 > 1501 / members as u64 / 2, "{census:?}");
            }
            // The tree below the move stays, and only that.
            let phase = search.phase(0).unwrap();
            let best = phase.choices[0];
            search.advance(best.by).unwrap();
            let census = search.census().unwrap();
            assert_eq!(census.evaluated, u64::from(best.visits));
            let kept = search.phase(0).unwrap();
            assert_eq!(kept.visits, best.visits);
            // It is the other player's turn.
            assert!(
                (kept.value - (1.0 - best.value)).abs() < 1e-9,
                "{kept:?} {best:?}"
            );
            assert_eq!(search.phase(500).unwrap().visits, best.visits + 500);
            search.census().unwrap();
            // A new game forgets all.
            search.begin(Hex11::new()).unwrap();
            assert_eq!(search.phase(10).unwrap().visits, 10);
            assert_eq!(search.census().unwrap().nodes, 10);
        });
    }
}

#[test]
fn many_members_search_together() {
    // More than an export can name.
    search_with::<Hex11, _>(2, 20, SearchConfig::default(), |search| {
        search.begin(Hex11::new()).unwrap();
        assert_eq!(search.phase(1000).unwrap().visits, 1000);
        let census = search.census().unwrap();
        assert_eq!((census.evaluated, search.members()), (1000, 20));
        assert!(census.leaves.0 > 10, "{census:?}");
    });
}

#[test]
fn visits_wait_for_nodes_that_are_being_made() {
    // A game of one move after the other: every visit goes the same way, and waits where the node at its end is being made.
    search_with::<Ladder, _>(2, 2, SearchConfig::default(), |search| {
        let mut deferred = 0;
        for round in 1..=20 {
            search.begin(Ladder { left: 50 }).unwrap();
            assert_eq!(search.phase(200).unwrap().visits, 200);
            let census = search.census().unwrap();
            assert_eq!((census.evaluated, census.nodes), (200, 51), "round {round}");
            deferred = census.deferred;
        }
        // Two nodes under way at a time would do without.
        assert!(deferred > 100, "{deferred}");
    });
}

#[test]
fn a_winning_move_is_found_and_a_losing_one_is_prevented() {
    search_with::<Hex11, _>(2, 2, SearchConfig::default(), |search| {
        let mut game = Hex11::new();
        for row in 0..10 {
            game.apply(row * 11 + 4);
            game.apply(row * 11 + 6);
        }
        // 10 * 11 + 3 and + 4 complete the first player's chain.
        search.begin(game).unwrap();
        let phase = search.phase(2000).unwrap();
        assert!(
            [113, 114].contains(&phase.best().unwrap()),
            "{:?}",
            &phase.choices[..5]
        );
        assert!(phase.value > 0.6, "{phase:?}");
    });
    search_with::<Noughts, _>(2, 2, SearchConfig::default(), |search| {
        // The first player threatens cell 2.
        let mut game = Noughts::default();
        for cell in [0, 4, 1] {
            game.apply(cell);
        }
        search.begin(game).unwrap();
        assert_eq!(search.phase(1000).unwrap().best(), Some(2));
    });
}

/// Plays every line in which the other player does anything, and the search what it finds.
fn never_loses(search: &mut Search<Noughts>, game: Noughts, own: Player, seen: &mut HashSet<Noughts>) -> u32 {
    if let Some(outcome) = game.outcome() {
        assert_ne!(outcome, Outcome::Won(own.other()), "{game:?}");
        return 1;
    }
    if !seen.insert(game.alike()) {
        return 0;
    }
    let mut moves = Vec::new();
    if game.player() == own {
        search.begin(game).unwrap();
        moves.extend(search.phase(10_000).unwrap().best());
    } else {
        game.moves(&mut moves);
    }
    let next = |by| {
        let mut next = game;
        next.apply(by);
        never_loses(search, next, own, seen)
    };
    moves.into_iter().map(next).sum()
}

#[test]
fn noughts_and_crosses_is_never_lost() {
    for members in [1, 2] {
        search_with::<Noughts, _>(members, members, SearchConfig::default(), |search| {
            for own in [Player::First, Player::Second] {
                let ends = never_loses(search, Noughts::default(), own, &mut HashSet::new());
                assert!(ends > 5, "{ends}");
            }
        });
    }
}

/// How many of so many games the search wins against a player that makes any move with the same chance. It begins every second.
fn wins<const N: usize>(search: &mut Search<Hex<N>>, games: u32, visits: u32) -> u32 {
    let mut random = SmallRng::seed_from_u64(1);
    let mut wins = 0;
    for number in 0..games {
        let own = if number % 2 == 0 {
            Player::First
        } else {
            Player::Second
        };
        let mut game = Hex::<N>::new();
        search.begin(game).unwrap();
        while game.outcome().is_none() {
            let by = if game.player() == own {
                search.phase(visits).unwrap().best().unwrap()
            } else {
                let mut moves = Vec::new();
                game.moves(&mut moves);
                moves[random.random_range(0..moves.len())]
            };
            game.apply(by);
            search.advance(by).unwrap();
        }
        wins += u32::from(game.outcome() == Some(Outcome::Won(own)));
        search.census().unwrap();
    }
    wins
}

#[test]
fn a_uniform_player_is_beaten() {
    let few = SearchConfig::default().simulations(4);
    let alone = search_with::<Hex11, _>(1, 1, few.clone(), |search| wins(search, 100, 1000));
    assert!(alone >= 95, "{alone} of 100 games");
    let both = search_with::<Hex11, _>(2, 2, few, |search| wins(search, 10, 1000));
    assert!(both >= 9, "{both} of 10 games");
}

#[test]
fn every_way_to_pack_calls_conserves_visits() {
    let small = CallsConfig::default().chunk_bytes(1024).chunks(2);
    for aggregation in [
        Aggregation::None,
        Aggregation::Overflow { bytes: 400 },
        Aggregation::default(),
    ] {
        let member = MemberConfig::default().calls(small.clone().aggregation(aggregation));
        let nodes = nodes(2);
        let (mut ports, addresses) = ports(&nodes, 2);
        let (port, all) = (ports.pop().unwrap(), addresses.clone());
        let config = member.clone();
        let other =
            std::thread::spawn(move || netvm_search::Member::<Noughts>::open(port, &all, config)?.run());
        let config = SearchConfig::default().window(200).member(member);
        let mut search = Search::open(ports.remove(0), &addresses, config).unwrap();
        search.begin(Noughts::default()).unwrap();
        search.phase(5000).unwrap();
        assert_eq!(search.census().unwrap().evaluated, 5000);
        search.end().unwrap();
        other.join().unwrap().unwrap();
    }
}

#[test]
fn one_member_with_one_seed_searches_the_same_again() {
    let run = |seed| {
        search_with::<Hex11, _>(1, 1, SearchConfig::default().seed(seed), |search| {
            search.begin(Hex11::new()).unwrap();
            search.phase(500).unwrap()
        })
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn a_game_that_is_over_is_told() {
    let mut game = Hex::<1>::new();
    game.apply(0);
    search_with::<Hex<1>, _>(1, 1, SearchConfig::default(), |search| {
        search.begin(game).unwrap();
        let phase = search.phase(100).unwrap();
        assert_eq!((phase.best(), phase.visits), (None, 100));
        // The first player has won, and it is the second's turn.
        assert!(phase.value.abs() < 1e-9, "{phase:?}");
        assert_eq!(search.advance(0), Err(Error::IllegalMove));
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let nodes = nodes(1);
    let refused = |config: SearchConfig| {
        let (mut ports, addresses) = ports(&nodes, 1);
        match Search::<Noughts>::open(ports.remove(0), &addresses, config) {
            Err(Error::Configuration(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    refused(SearchConfig::default().simulations(0));
    refused(SearchConfig::default().simulations(1 << 17));
    refused(SearchConfig::default().exploration(f32::NAN));
    refused(SearchConfig::default().exploration(-1.0));
    refused(SearchConfig::default().window(0));
    let lists = |list: &dyn Fn(&mut Vec<_>)| {
        let (mut ports, mut addresses) = ports(&nodes, 2);
        list(&mut addresses);
        match Search::<Noughts>::open(ports.remove(0), &addresses, SearchConfig::default()) {
            Err(Error::Configuration(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    lists(&|list| list.clear());
    lists(&|list| list.swap(0, 1));
    lists(&|list| list[1] = list[0]);
    // One that does not come.
    let (mut ports, addresses) = ports(&nodes, 2);
    let soon = MemberConfig::default().patience(Duration::from_millis(50));
    let config = SearchConfig::default().member(soon);
    match Search::<Noughts>::open(ports.remove(0), &addresses, config) {
        Err(Error::Missing { rank: 1, address }) => assert_eq!(address, addresses[1]),
        other => panic!("{other:?}"),
    }
    // The first member does not only take part.
    let (mut ports, addresses) = support::ports(&nodes, 1);
    let member = netvm_search::Member::<Noughts>::open(ports.remove(0), &addresses, patient()).unwrap();
    assert_eq!((member.rank(), member.members()), (0, 1));
    assert!(matches!(member.run(), Err(Error::Configuration(_))));
    // No game, and a move that is not there.
    search_with::<Noughts, _>(1, 2, SearchConfig::default(), |search| {
        assert_eq!(search.phase(1), Err(Error::NoGame));
        assert_eq!(search.advance(0), Err(Error::NoGame));
        search.begin(Noughts::default()).unwrap();
        assert_eq!(search.advance(9), Err(Error::IllegalMove));
        assert_eq!(
            search.phase(u32::MAX),
            Err(Error::TooManyVisits { limit: u32::MAX / 32 })
        );
        // Moves before any visit.
        search.advance(0).unwrap();
        search.advance(4).unwrap();
        assert_eq!(search.phase(50).unwrap().visits, 50);
        search.census().unwrap();
    });
}
