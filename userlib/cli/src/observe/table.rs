//! Lists as a person reads them.

/// Rows under titles: as wide as they must be, the first column to the left, the others to the right.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(titles.get(column).map_or(0, |title| title.chars().count()))
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::from("  ");
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            line += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut titles.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// `1536` as `1.5 KiB`.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = units.iter().copied();
    let mut name = unit.next().unwrap_or_default();
    while value >= 1024.0 {
        let Some(next) = unit.next() else { break };
        (value, name) = (value / 1024.0, next);
    }
    let whole = value.fract() == 0.0 || value >= 100.0;
    if whole {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// `1234` nanoseconds as `1.2 us`.
pub(crate) fn time(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let rows = [vec!["a".into(), "12345".into()], vec!["long".into(), "1".into()]];
        assert_eq!(
            table(&["port", "n"], &rows),
            "  port      n\n  a     12345\n  long      1\n"
        );
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(
            (bytes(0), bytes(1536), bytes(1 << 30)),
            ("0 B".into(), "1.5 KiB".into(), "1 GiB".into())
        );
        assert_eq!(
            (time(999), time(1_500), time(2_000_000_000)),
            ("999 ns".into(), "1.5 us".into(), "2.0 s".into())
        );
        assert!(bytes(u64::MAX).ends_with("PiB"));
    }
}
