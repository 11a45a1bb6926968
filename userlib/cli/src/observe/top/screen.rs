//! How the view looks on a terminal of any size.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::super::plain;
use super::lists::{Cells, GAP, List};
use super::view::View;

/// What stands where there is no card.
const NO_NODE: &str =
    "no node of this user runs: `netvm serve NAME` starts one, and it shows here as soon as it runs";
/// And before the first look has ended.
const LOOKING: &str = "looking for nodes";
const KEYS: &str = "q end  ↑↓ node  Tab list  PgUp PgDn  p hold";

/// Bold and reversed letters are there on every terminal, and for every eye.
const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    // A line of titles, and no more than half of the window.
    let nodes = (view.seen.len() + 1).min(usize::from(frame.area().height) / 2);
    let nodes = u16::try_from(nodes).unwrap_or(u16::MAX);
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(nodes),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, nodes, tabs, list, foot] = parts.areas(frame.area());
    frame.render_widget(heading(view), head);
    frame.render_widget(footing(view), foot);
    let Some(chosen) = view.seen.get(view.chosen()) else {
        let words = if view.has_looked() { NO_NODE } else { LOOKING };
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), list);
        return;
    };
    draw_table(frame, nodes, &Cells::nodes(&view.seen), 0, Some(view.chosen()));
    frame.render_widget(tab_line(view), tabs);
    if let Some(error) = &chosen.silent {
        frame.render_widget(Paragraph::new(plain(error)).wrap(Wrap { trim: true }), list);
        return;
    }
    let cells = view.list.of(chosen);
    if cells.rows.is_empty() {
        frame.render_widget(Paragraph::new(format!("no {}", view.list.name())), list);
    } else {
        draw_table(frame, list, &cells, view.from, None);
    }
}

fn heading(view: &View) -> Line<'static> {
    let held = if view.held { ", held" } else { "" };
    let count = match view.seen.len() {
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    };
    let interval = view.interval.as_secs_f64();
    Line::styled(format!("netvm top: {count}, every {interval} s{held}"), TITLE)
}

fn footing(view: &View) -> Line<'_> {
    Line::raw(match view.words.as_str() {
        "" => KEYS,
        words => words,
    })
}

/// The lists, and the card that they are of.
fn tab_line(view: &View) -> Line<'static> {
    let mut spans = Vec::new();
    for list in List::ALL {
        let style = if list == view.list { CHOSEN } else { TITLE };
        spans.extend([Span::styled(format!(" {} ", list.name()), style), Span::raw(" ")]);
    }
    if let Some(seen) = view.seen.get(view.chosen()) {
        spans.push(Span::raw(format!("of {}", seen.card.title())));
    }
    Line::from(spans)
}

/// As many columns as fit, the first to the left, the others to the right.
fn draw_table(frame: &mut Frame<'_>, area: Rect, cells: &Cells, from: usize, chosen: Option<usize>) {
    let widths = cells.widths(usize::from(area.width));
    let cell = |(column, text): (usize, &str)| {
        let side = if column == 0 {
            Alignment::Left
        } else {
            Alignment::Right
        };
        Cell::from(Text::from(text.to_owned()).alignment(side))
    };
    let titles = cells.titles.iter().copied().enumerate().take(widths.len());
    let rows = cells.rows.iter().skip(from).map(|row| {
        let row = row.iter().map(String::as_str).enumerate().take(widths.len());
        Row::new(row.map(cell))
    });
    let constraints = widths
        .iter()
        .map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
    let table = Table::new(rows, constraints)
        .header(Row::new(titles.map(cell)).style(TITLE))
        .column_spacing(GAP as u16)
        .row_highlight_style(CHOSEN);
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use netvm_process::soft::report::Section;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::seen::Look;
    use super::super::seen::tests::{entry, node};
    use super::super::view::tests::{look, view};
    use super::*;

    /// The lines of a window of this size.
    fn lines(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a window");
        terminal.draw(|frame| draw(frame, view)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .filter_map(|x| buffer.cell((x, y)))
                .map(|cell| cell.symbol())
                .collect()
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn nodes_and_links_are_shown_with_windows_and_rates() {
        let lines = lines(&view(&[1, 2]), 120, 24);
        assert!(
            lines[0].starts_with("netvm top: 2 nodes, every 1 s "),
            "{lines:#?}"
        );
        let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(
            words(&lines[2]),
            [
                "1", "store", "1,000", "500", "75", "%", "25", "3", "1", "1", "name1", "4.0", "2.0", "1001"
            ]
        );
        assert!(lines[4].contains("links") && lines[4].contains("of node 1 (process 1001"));
        assert_eq!(
            words(&lines[5])[..6],
            ["to", "state", "used", "free", "sent/s", "received/s"]
        );
        assert_eq!(
            words(&lines[6])[..10],
            ["7", "up", "5", "59", "1,000", "-", "3", "6", "12.3", "us"]
        );
        assert!(lines[23].starts_with("q end"), "{lines:#?}");
    }

    #[test]
    fn ports_and_what_is_empty_have_their_list() {
        let mut view = view(&[1]);
        view.list = List::Ports;
        let ports = lines(&view, 80, 24).join("\n");
        assert!(ports.contains("commands/s") && ports.contains("\n3 "), "{ports}");
        view.list = List::Segments;
        assert!(lines(&view, 80, 24).join("\n").contains("no segments"));
    }

    #[test]
    fn a_narrow_window_keeps_the_most_wanted_columns_and_none_is_cut() {
        let narrow = lines(&view(&[1, 2]), 40, 12);
        let titles: Vec<&str> = narrow[1].split_whitespace().collect();
        assert_eq!(titles, ["node", "program", "sent/s", "received/s"], "{narrow:#?}");
        let titles: Vec<&str> = narrow[5].split_whitespace().collect();
        assert_eq!(titles[..4], ["to", "state", "used", "free"], "{narrow:#?}");
        assert!(
            !narrow.join("\n").contains("process"),
            "the last columns go first: {narrow:#?}"
        );
    }

    #[test]
    fn every_size_can_be_drawn() {
        for numbers in [&[][..], &[1], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            let view = view(numbers);
            for (width, height) in [(1, 1), (3, 2), (10, 3), (20, 4), (20, 5), (500, 3), (2, 200)] {
                lines(&view, width, height);
            }
        }
    }

    #[test]
    fn more_nodes_than_lines_scroll_to_the_chosen_one() {
        use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
        let mut view = view(&(0..30).collect::<Vec<_>>());
        for _ in 0..30 {
            view.key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
        }
        let lines = lines(&view, 80, 20);
        assert!(
            lines[1..11].iter().any(|line| line.starts_with("29 ")),
            "{lines:#?}"
        );
        assert!(lines[11].contains("of node 29"), "{lines:#?}");
    }

    #[test]
    fn without_a_node_it_says_how_to_start_one() {
        let text = lines(&view(&[]), 60, 12).join(" ");
        assert!(
            text.contains("0 nodes") && text.contains("`netvm serve NAME`"),
            "{text}"
        );
        let first = lines(&View::new(Duration::from_secs(1)), 60, 12).join(" ");
        assert!(first.contains(LOOKING) && !first.contains("serve"), "{first}");
    }

    #[test]
    fn a_node_that_ends_goes_with_a_word() {
        let mut view = view(&[1, 2]);
        assert!(lines(&view, 100, 20)[3].starts_with("2 "));
        look(&mut view, Instant::now(), 3, &[1]);
        let after = lines(&view, 100, 20);
        assert!(after[0].contains("1 node,"), "{after:#?}");
        assert!(
            !after[1..19].iter().any(|line| line.starts_with("2 ")),
            "{after:#?}"
        );
        assert!(
            after[19].contains("node 2 (process 1002, store, found as 'name2') has ended"),
            "{after:#?}"
        );
    }

    #[test]
    fn a_silent_node_and_hostile_names_are_text() {
        let mut view = View::new(Duration::from_secs(1));
        let mut link = entry(1, &[]);
        link.labels = vec![("kind".into(), "\x1b[2Jx".into()), ("state".into(), "up".into())];
        let talks = (node(1), vec![(Section::Links, Ok(vec![link]))]);
        let silent = (
            node(2),
            vec![(Section::Links, Err("does not\nanswer".to_owned()))],
        );
        view.take(Look::of(Instant::now(), vec![talks, silent]));
        let text = lines(&view, 120, 20).join("\n");
        assert!(text.contains("\u{FFFD}[2Jx") && !text.contains('\x1b'), "{text}");
        use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
        view.key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
        let text = lines(&view, 120, 20).join("\n");
        assert!(text.contains("does not\u{FFFD}answer"), "{text}");
    }
}
