//! A hash table, in the manner of RACE: buckets that are read one-sided, and changed by a single word.
//!
//! A bucket is a word and some places. The word says which places hold an entry, and has a version that each change raises. A writer, which has
//! the bucket by a lease, writes an entry into a place that holds none, waits until it has landed, and writes the word. A reader reads the word,
//! the places, and the word again. If that is the same, no place that it names has been written meanwhile.

use super::{HEAD, Turn, create, land, mark, open, word};
use crate::{Client, Error, Manager, Result};
use netvm::{Export, RemoteSegment};
use std::time::Duration;

/// Marks a table, with its version.
const MARK: u64 = 0x4C54_0001;
/// Places that a bucket's word can name.
const MOST_PLACES: u32 = 16;
/// Looks at a bucket that changes all the time, before a reader gives up.
const LOOKS: u32 = 10_000;

/// The shape of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct TableConfig {
    buckets: u64,
    places: u32,
    value_bytes: u32,
}

impl Default for TableConfig {
    /// 256 buckets of 8 places, for values of up to 48 bytes.
    fn default() -> Self {
        Self {
            buckets: 256,
            places: 8,
            value_bytes: 48,
        }
    }
}

impl TableConfig {
    /// Buckets: 1 to 2^20. Each is a part with a key of the manager.
    pub const fn buckets(mut self, buckets: u64) -> Self {
        self.buckets = buckets;
        self
    }

    /// Places of a bucket: 2 to 16. One of them is left free, so that an entry can be replaced.
    pub const fn places(mut self, places: u32) -> Self {
        self.places = places;
        self
    }

    /// The longest value, in bytes: up to 1,024.
    pub const fn value_bytes(mut self, bytes: u32) -> Self {
        self.value_bytes = bytes;
        self
    }

    fn shape(self, first: u64) -> Result<Shape> {
        let bytes = u64::from(self.value_bytes).next_multiple_of(8);
        let good = (1..=1 << 20).contains(&self.buckets)
            && (2..=MOST_PLACES).contains(&self.places)
            && (8..=1024).contains(&bytes);
        let shape = Shape {
            first,
            buckets: self.buckets,
            places: self.places.into(),
            value: bytes,
        };
        good.then_some(shape).ok_or(Error::BadPool(
            "a table has 1 to 2^20 buckets of 2 to 16 places, and values of 1 to 1,024 bytes",
        ))
    }
}

/// Where everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// The key of the head; buckets have those after it.
    first: u64,
    buckets: u64,
    places: u64,
    value: u64,
}

impl Shape {
    /// Bytes of an entry: key, length, value.
    const fn entry(&self) -> u64 {
        16 + self.value
    }

    /// Bytes of a bucket.
    const fn bucket(&self) -> u64 {
        (8 + self.places * self.entry()).next_multiple_of(64)
    }

    /// The bucket of a key.
    const fn bucket_of(&self, key: u64) -> u64 {
        // The last steps of SplitMix64: neighbours lie far apart.
        let key = (key ^ (key >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let key = (key ^ (key >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (key ^ (key >> 31)) % self.buckets
    }

    const fn place(&self, place: u64) -> u64 {
        8 + place * self.entry()
    }
}

/// A bucket's word: a version in 32 bits, the mark of its writer in 16, and 16 that say which places hold an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Directory(u64);

impl Directory {
    const fn has(self, place: u64) -> bool {
        self.0 >> place & 1 != 0
    }

    /// The same after a change.
    const fn changed(self, mark: u16, without: Option<u64>, with: Option<u64>) -> Self {
        let mut places = self.0 & 0xFFFF;
        if let Some(place) = without {
            places &= !(1 << place);
        }
        if let Some(place) = with {
            places |= 1 << place;
        }
        Self((self.0 >> 32).wrapping_add(1) << 32 | (mark as u64) << 16 | places)
    }
}

/// A table in a manager's memory. Clients can open it while this lives.
#[derive(Debug)]
pub struct Table {
    _export: Export,
}

impl Table {
    /// Makes an empty table, under this name. It takes one key more than it has buckets, from `first` on.
    ///
    /// # Errors
    /// [`Error::BadPool`] for a shape that cannot be, keys that are taken, or too little room; as [`Port::export`](netvm::Port::export).
    pub fn create(manager: &mut Manager, name: &str, first: u64, config: TableConfig) -> Result<Self> {
        let shape = config.shape(first)?;
        let mut sizes = vec![shape.bucket(); shape.buckets as usize + 1];
        if let Some(head) = sizes.first_mut() {
            *head = HEAD;
        }
        let head = [MARK, first, shape.buckets, shape.places, shape.value, 0, 0, 0];
        let _export = create(manager, name, first, &sizes, head)?;
        Ok(Self { _export })
    }
}

/// A client's use of a [`Table`].
#[derive(Debug)]
pub struct TableClient {
    client: Client,
    view: RemoteSegment,
    shape: Shape,
    turn: Turn,
    /// What a bucket's word was last.
    known: Vec<Option<Directory>>,
}

impl TableClient {
    /// Opens the table of this name at the manager that the client is connected to.
    ///
    /// # Errors
    /// [`Error::NoStructure`] if that name is of something else; as [`Port::import`](netvm::Port::import).
    pub fn open(client: Client, name: &str) -> Result<Self> {
        let (view, [_, first, buckets, places, value, ..]) = open(&client, client.manager(), name, MARK)?;
        let config = TableConfig {
            buckets,
            places: u32::try_from(places).unwrap_or(0),
            value_bytes: u32::try_from(value).unwrap_or(0),
        };
        let shape = config.shape(first).map_err(|_| Error::NoStructure)?;
        if view.len() < HEAD + shape.buckets * shape.bucket() {
            return Err(Error::NoStructure);
        }
        Ok(Self {
            client,
            view,
            known: vec![None; shape.buckets as usize],
            shape,
            turn: Turn::default(),
        })
    }

    /// How long it may hold a bucket that it changes: 10 ms if not set. When it dies meanwhile, others wait for so long.
    pub const fn holds(&mut self, span: Duration) {
        self.turn.holds = span;
    }

    /// How long it waits for a bucket that others change: 5 s if not set.
    pub const fn waits(&mut self, span: Duration) {
        self.turn.waits = span;
    }

    /// The client that it uses.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Error::Library`]; [`Error::NoAnswer`] if the bucket has changed at each of many looks.
    pub fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>> {
        let bucket = self.shape.bucket_of(key);
        let at = HEAD + bucket * self.shape.bucket();
        let mut before = match self.known.get(bucket as usize).copied().flatten() {
            Some(known) => known,
            None => Directory(word(at, &self.view)?),
        };
        let mut bytes = vec![0; self.shape.bucket() as usize];
        for _ in 0..LOOKS {
            self.view.read(at, &mut bytes).call()?;
            let after = Directory(word(at, &self.view)?);
            if let Some(known) = self.known.get_mut(bucket as usize) {
                *known = Some(after);
            }
            if before == after {
                let found = find(&self.shape, &bytes, after, key);
                return Ok(found.map(|(_, value)| value.to_vec()));
            }
            before = after;
        }
        Err(Error::NoAnswer)
    }

    /// Gives a key a value, the first or another one. `false`: its bucket is full.
    ///
    /// # Errors
    /// [`Error::BadValue`] for one that is too long. Else as [`Client::acquire`]; see the [module](crate::tables)'s text for an expired lease.
    pub fn insert(&mut self, key: u64, value: &[u8]) -> Result<bool> {
        let shape = self.shape;
        if value.len() as u64 > shape.value {
            return Err(Error::BadValue { limit: shape.value });
        }
        self.change(
            key,
            |directory, old| {
                let live = (0..shape.places).filter(|place| directory.has(*place)).count() as u64;
                // One stays free for replacements.
                if old.is_none() && live + 1 >= shape.places {
                    return None;
                }
                (0..shape.places).find(|place| !directory.has(*place))
            },
            Some(value),
        )
    }

    /// Takes a key out. `false`: it was not there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn remove(&mut self, key: u64) -> Result<bool> {
        self.change(key, |_, old| old, None)
    }

    /// Changes the bucket of a key, if `choose` chooses a place.
    fn change(
        &mut self,
        key: u64,
        choose: impl FnOnce(Directory, Option<u64>) -> Option<u64>,
        value: Option<&[u8]>,
    ) -> Result<bool> {
        let (shape, bucket) = (self.shape, self.shape.bucket_of(key));
        let part = shape.first + 1 + bucket;
        self.turn.with(&mut self.client, part, |port, lease| {
            let mut bytes = vec![0; shape.bucket() as usize];
            lease.read(0, &mut bytes).call()?;
            let first = bytes.first_chunk().copied().unwrap_or_default();
            let directory = Directory(u64::from_le_bytes(first));
            let old = find(&shape, &bytes, directory, key).map(|(place, _)| place);
            let Some(place) = choose(directory, old) else {
                return Ok(false);
            };
            let changed = match value {
                Some(value) => {
                    let mut entry = Vec::with_capacity(shape.entry() as usize);
                    entry.extend_from_slice(&key.to_le_bytes());
                    entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
                    entry.extend_from_slice(value);
                    land(port, lease, shape.place(place), &entry)?;
                    directory.changed(mark(lease), old, Some(place))
                }
                None => directory.changed(mark(lease), Some(place), None),
            };
            // From here on it is so.
            land(port, lease, 0, &changed.0.to_le_bytes())?;
            Ok(true)
        })
    }
}

/// The place of a key in a bucket, and its value.
fn find<'a>(shape: &Shape, bucket: &'a [u8], directory: Directory, key: u64) -> Option<(u64, &'a [u8])> {
    (0..shape.places)
        .filter(|place| directory.has(*place))
        .find_map(|place| {
            let entry = bucket.get(shape.place(place) as usize..)?;
            let (name, rest) = entry.split_first_chunk()?;
            let (len, value) = rest.split_first_chunk()?;
            if u64::from_le_bytes(*name) != key {
                return None;
            }
            // What another client wrote there is not trusted.
            let len = u64::from_le_bytes(*len).min(shape.value);
            Some((place, value.get(..len as usize)?))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_places_and_each_change_raises_its_version() {
        let one = Directory(0).changed(7, None, Some(3));
        assert_eq!(one, Directory(1 << 32 | 7 << 16 | 8));
        let two = one.changed(9, Some(3), Some(15));
        assert_eq!(two, Directory(2 << 32 | 9 << 16 | 1 << 15));
        assert_eq!((two.has(15), two.has(3)), (true, false));
        assert_eq!(two.changed(0, Some(15), None), Directory(3 << 32));
        assert_eq!(Directory(u64::MAX).changed(0, None, None), Directory(0xFFFF));
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let good = TableConfig::default();
        let shape = good.shape(7).unwrap();
        assert_eq!((shape.entry(), shape.bucket()), (64, 576));
        for bad in [
            good.buckets(0),
            good.buckets(1 << 21),
            good.places(1),
            good.places(17),
            good.value_bytes(0),
            good.value_bytes(1025),
        ] {
            assert!(matches!(bad.shape(7), Err(Error::BadPool(_))), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_spread_over_buckets() {
        let shape = TableConfig::default().shape(0).unwrap();
        let mut counts = [0; 256];
        (0..2560).for_each(|key| counts[shape.bucket_of(key) as usize] += 1);
        assert!(counts.iter().all(|count| *count < 40), "{counts:?}");
    }

    #[test]
    fn an_entry_that_lies_about_its_length_is_cut() {
        let shape = TableConfig::default().shape(0).unwrap();
        let mut bucket = vec![7; shape.bucket() as usize];
        let at = shape.place(2) as usize;
        bucket[at..at + 8].copy_from_slice(&5_u64.to_le_bytes());
        let found = find(&shape, &bucket, Directory(4), 5);
        assert_eq!(found, Some((2, &[7; 48][..])));
        assert_eq!(find(&shape, &bucket, Directory(8), 5), None);
        assert_eq!(find(&shape, &bucket[..at], Directory(4), 5), None);
    }
}
