//! What the view stands at: which card and which list are chosen, whether it is held, and what has been said last.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::Card;
use super::lists::List;
use super::seen::{Look, Seen};

/// Lines that a page of a list goes on by.
const PAGE: usize = 10;

/// The state of the view.
pub(super) struct View {
    /// Between two looks.
    pub(super) interval: Duration,
    pub(super) seen: Vec<Seen>,
    pub(super) list: List,
    /// The first line of the list that is shown.
    pub(super) from: usize,
    pub(super) held: bool,
    /// What has come and gone, as far as it was noticed last.
    pub(super) words: String,
    chosen: Option<Card>,
    last: Option<Look>,
}

impl View {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            seen: Vec::new(),
            list: List::Links,
            from: 0,
            held: false,
            words: String::new(),
            chosen: None,
            last: None,
        }
    }

    /// The place of the chosen card; the first one, as long as none was chosen.
    pub(super) fn chosen(&self) -> usize {
        let chosen = self.chosen.as_ref();
        let is = |seen: &Seen| chosen.is_some_and(|chosen| seen.card.same(chosen));
        self.seen.iter().position(is).unwrap_or(0)
    }

    /// Shows what the next look has found. While the view is held it does not change; rates go on from the last look.
    pub(super) fn take(&mut self, look: Look) {
        if !self.held {
            let now = Seen::between(self.last.as_ref(), &look);
            let place = self.chosen();
            let gone = missing(&self.seen, &now).map(|card| format!("{} has ended", card.title()));
            let come = missing(&now, &self.seen).map(|card| format!("{} has come", card.title()));
            let words: Vec<String> = gone.chain(come).collect();
            if self.last.is_some() && !words.is_empty() {
                self.words = words.join("; ");
            }
            let there = |chosen: &Card| now.iter().any(|seen| seen.card.same(chosen));
            if self.chosen.as_ref().is_some_and(|chosen| !there(chosen)) {
                // The one that has come to its place.
                let neighbour = now.get(place).or(now.last());
                self.chosen = neighbour.map(|seen| seen.card.clone());
                self.from = 0;
            }
            self.seen = now;
        }
        self.last = Some(look);
    }

    /// Whether anything has been looked at yet.
    pub(super) fn has_looked(&self) -> bool {
        self.last.is_some()
    }

    /// Does what a key asks for. Returns false if the view is to end.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        // What has been said is read; the keys stand there again.
        self.words.clear();
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('p' | ' ') => self.held = !self.held,
            KeyCode::Up | KeyCode::Char('k') => self.choose(self.chosen().saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(self.chosen() + 1),
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.turn(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => self.turn(List::ALL.len() - 1),
            KeyCode::PageDown => self.from = (self.from + PAGE).min(self.lines().saturating_sub(1)),
            KeyCode::PageUp => self.from = self.from.saturating_sub(PAGE),
            _ => {}
        }
        true
    }

    /// Lines of the list that is shown.
    fn lines(&self) -> usize {
        let seen = self.seen.get(self.chosen());
        seen.map_or(0, |seen| self.list.of(seen).rows.len())
    }

    fn choose(&mut self, place: usize) {
        let last = self.seen.len().saturating_sub(1);
        if let Some(seen) = self.seen.get(place.min(last)) {
            self.chosen = Some(seen.card.clone());
            self.from = 0;
        }
    }

    fn turn(&mut self, by: usize) {
        let place = List::ALL.iter().position(|list| *list == self.list).unwrap_or(0);
        let next = (place + by) % List::ALL.len();
        self.list = List::ALL.get(next).copied().unwrap_or(List::Links);
        self.from = 0;
    }
}

/// Cards of the one that are not among the others.
fn missing<'a>(ones: &'a [Seen], others: &'a [Seen]) -> impl Iterator<Item = &'a Card> {
    let cards = ones.iter().map(|seen| &seen.card);
    cards.filter(|card| !others.iter().any(|other| other.card.same(card)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use super::super::seen::tests::{node, said};
    use super::*;

    /// A view after two looks at these nodes.
    pub(in super::super) fn view(numbers: &[u16]) -> View {
        let mut view = View::new(Duration::from_secs(1));
        let begin = Instant::now();
        for second in 1..=2 {
            look(&mut view, begin, second, numbers);
        }
        view
    }

    pub(in super::super) fn look(view: &mut View, begin: Instant, second: u64, numbers: &[u16]) {
        let cards = numbers.iter().map(|number| said(*number, second)).collect();
        view.take(Look::of(begin + Duration::from_secs(second), cards));
    }

    fn press(view: &mut View, code: KeyCode) -> bool {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_end_hold_and_choose() {
        let mut view = view(&[1, 2, 3]);
        assert!(!press(&mut view, KeyCode::Char('q')));
        assert!(!press(&mut view, KeyCode::Esc));
        assert!(!view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(press(&mut view, KeyCode::Char('c')));
        for (code, place) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::Down, 2),
            (KeyCode::Down, 2),
            (KeyCode::Up, 1),
        ] {
            assert!(press(&mut view, code));
            assert_eq!(view.chosen(), place);
        }
        for (code, list) in [
            (KeyCode::Tab, List::Ports),
            (KeyCode::Right, List::Segments),
            (KeyCode::Right, List::Links),
            (KeyCode::Left, List::Segments),
        ] {
            assert!(press(&mut view, code));
            assert_eq!(view.list, list);
        }
        assert!(press(&mut view, KeyCode::Char('p')) && view.held);
        assert!(press(&mut view, KeyCode::Char('p')) && !view.held);
    }

    #[test]
    fn a_page_goes_no_further_than_the_list() {
        let mut view = view(&[1]);
        press(&mut view, KeyCode::PageDown);
        assert_eq!(view.from, 0, "one link only");
        press(&mut view, KeyCode::PageUp);
        assert_eq!(view.from, 0);
        let mut nothing = View::new(Duration::from_secs(1));
        for code in [KeyCode::PageDown, KeyCode::Down, KeyCode::Up, KeyCode::Tab] {
            assert!(press(&mut nothing, code));
        }
        assert_eq!((nothing.chosen(), nothing.from), (0, 0));
    }

    #[test]
    fn the_chosen_node_stays_chosen_when_others_come_and_go() {
        let begin = Instant::now();
        let mut view = view(&[1, 5, 9]);
        press(&mut view, KeyCode::Down);
        look(&mut view, begin, 3, &[0, 1, 5, 9]);
        assert_eq!(view.chosen(), 2);
        assert_eq!(
            view.words,
            "node 0 (process 1000, store, found as 'name0') has come"
        );
        look(&mut view, begin, 4, &[0, 1, 9]);
        assert_eq!(view.chosen(), 2, "what has come to its place");
        assert!(view.words.starts_with("node 5 (process 1005,"), "{}", view.words);
        assert!(view.words.ends_with("has ended"), "{}", view.words);
        look(&mut view, begin, 5, &[0, 1, 9]);
        assert!(view.words.ends_with("has ended"), "until a key is pressed");
        press(&mut view, KeyCode::Tab);
        assert_eq!(view.words, "");
        look(&mut view, begin, 6, &[]);
        assert_eq!((view.chosen(), view.seen.len()), (0, 0));
        look(&mut view, begin, 7, &[4]);
        assert!(view.seen[0].card.same(&node(4)));
        assert!(view.words.ends_with("has come"), "{}", view.words);
    }

    #[test]
    fn a_view_that_is_held_stays_and_then_goes_on_with_fresh_rates() {
        let begin = Instant::now();
        let mut view = view(&[1]);
        press(&mut view, KeyCode::Char('p'));
        look(&mut view, begin, 10, &[]);
        assert_eq!(view.seen.len(), 1);
        look(&mut view, begin, 11, &[1]);
        press(&mut view, KeyCode::Char('p'));
        look(&mut view, begin, 12, &[1]);
        assert_eq!(view.seen[0].total.rate("sent"), Some(1000.0));
    }
}
