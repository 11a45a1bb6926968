//! Where the benchmark's platform puts down what the core gives it.

/// What may lie there at once: more than the pipelines and windows of two NICs hold.
const ROOM: usize = 64;

/// A queue whose push costs next to nothing, so that it hardly shows in what is counted: it does not look whether there is
/// room. A pop tells of what was lost by that.
pub struct Tray<T> {
    places: Box<[Option<T>; ROOM]>,
    put: usize,
    taken: usize,
}

impl<T: Copy> Default for Tray<T> {
    fn default() -> Self {
        Self {
            places: Box::new([None; ROOM]),
            put: 0,
            taken: 0,
        }
    }
}

impl<T: Copy> Tray<T> {
    /// Puts one down.
    #[inline]
    pub fn push(&mut self, item: T) {
        self.places[self.put % ROOM] = Some(item);
        self.put += 1;
    }

    /// The oldest.
    ///
    /// # Panics
    /// More was put down than there is room for.
    pub fn pop(&mut self) -> Option<T> {
        assert!(self.len() <= ROOM, "the benchmark puts down more than it takes");
        if self.len() == 0 {
            return None;
        }
        let item = self.places[self.taken % ROOM].take();
        self.taken += 1;
        item
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.put - self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_down_first_is_taken_first() {
        let mut tray = Tray::default();
        for item in 0..200 {
            tray.push(item);
            tray.push(item + 1000);
            assert_eq!(
                (tray.pop(), tray.pop(), tray.pop()),
                (Some(item), Some(item + 1000), None)
            );
        }
    }

    #[test]
    #[should_panic(expected = "more than it takes")]
    fn what_is_lost_is_told() {
        let mut tray = Tray::default();
        (0..=ROOM).for_each(|item| tray.push(item));
        tray.pop();
    }
}
