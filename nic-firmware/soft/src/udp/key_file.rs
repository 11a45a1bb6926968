//! A file with the key of a cluster, which its owner alone can read.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::key::{BadKey, ClusterKey};

/// More than the text of a key has.
const MOST_BYTES: usize = 256;
/// Rights of a key file: its owner's alone.
const MODE: u32 = 0o600;
const OTHERS: u32 = 0o077;

/// Why there is no key of a file, or no file of a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("key file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is a folder, a pipe or a device.
    #[error("key file {}: it is no ordinary file", .0.display())]
    NotAFile(PathBuf),
    /// Others may read or change it.
    #[error("key file {}: other users may read or change it (mode {mode:03o}): run `chmod 600 {}`", .path.display(), .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its rights.
        mode: u32,
    },
    /// Another user may read and change it.
    #[error("key file {}: it belongs to user {owner}: a key is read from files of this user or of root", .path.display())]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Its text is no key.
    #[error("key file {}: {reason}: `netvm key new` makes a good one", .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: BadKey,
    },
    /// A new key does not take the place of a file.
    #[error("{} exists already: a key file is not overwritten, as nodes may still need its key", .0.display())]
    Exists(PathBuf),
    /// The new file cannot be written.
    #[error("{}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl ClusterKey {
    /// Reads the key of a file. The file must be this user's or root's, and no other user may read or change it.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, KeyFileError> {
        let path = path.as_ref();
        let of = || path.to_owned();
        let failed = |source| KeyFileError::Read { path: of(), source };
        // A pipe without a writer would hold up an ordinary opening.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = opened.map_err(failed)?;
        // Of what was opened: the name may mean another file by now.
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(KeyFileError::NotAFile(of()));
        }
        if about.mode() & OTHERS != 0 {
            return Err(KeyFileError::Exposed {
                path: of(),
                mode: about.mode() & 0o777,
            });
        }
        let owner = about.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(KeyFileError::OtherOwner { path: of(), owner });
        }
        // With all of its room from the beginning: one that grows leaves copies.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_BYTES + 1));
        file.take(MOST_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        let key = match std::str::from_utf8(&bytes) {
            _ if bytes.len() > MOST_BYTES => Err(BadKey::Length),
            Ok(text) => Self::parse(text),
            Err(_) => Err(BadKey::Text),
        };
        key.map_err(|reason| KeyFileError::NoKey { path: of(), reason })
    }

    /// Writes the key to a new file, which this user alone can read and change.
    ///
    /// # Errors
    /// There is a file of this name, or it cannot be written.
    pub fn write_file(&self, path: impl AsRef<Path>) -> Result<(), KeyFileError> {
        let path = path.as_ref();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
            _ => KeyFileError::Write {
                path: path.to_owned(),
                source,
            },
        };
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(path);
        let mut file = opened.map_err(failed)?;
        let text = self.to_text();
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all());
        written.map_err(|error| {
            // A part of a key is none. It was made by this call.
            let _ = std::fs::remove_file(path);
            failed(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    /// A folder of a test's own, gone when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("netvm-key-{}-{name}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_key_comes_back_from_a_file_of_its_owner_alone() {
        let folder = Folder::new("good");
        let path = folder.0.join("key");
        let key = ClusterKey::generate().unwrap();
        key.write_file(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ClusterKey::read_file(&path).unwrap().bytes(), key.bytes());
        // Neither a file nor a name that leads nowhere is overwritten.
        let other = ClusterKey::generate().unwrap();
        assert!(matches!(other.write_file(&path), Err(KeyFileError::Exists(_))));
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(folder.0.join("nothing"), &link).unwrap();
        assert!(matches!(other.write_file(&link), Err(KeyFileError::Exists(_))));
        assert_eq!(ClusterKey::read_file(&path).unwrap().bytes(), key.bytes());
        let nowhere = other.write_file(folder.0.join("no such folder/key"));
        assert!(matches!(nowhere, Err(KeyFileError::Write { .. })));
    }

    #[test]
    fn a_file_that_others_can_use_is_refused_with_what_to_do() {
        let folder = Folder::new("rights");
        let path = folder.0.join("key");
        ClusterKey::generate().unwrap().write_file(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = ClusterKey::read_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{mode:o}: {error}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        ClusterKey::read_file(&path).unwrap();
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let folder = Folder::new("owner");
        let path = folder.0.join("key");
        ClusterKey::generate().unwrap().write_file(&path).unwrap();
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            println!("skipped: only root gives files away");
            return;
        }
        let read = ClusterKey::read_file(&path);
        assert!(
            matches!(read, Err(KeyFileError::OtherOwner { owner: 12_345, .. })),
            "{read:?}"
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let folder = Folder::new("bad");
        let path = folder.0.join("key");
        let text = ClusterKey::generate().unwrap().to_text();
        let long = "netvm-key-1:".to_owned() + &"A".repeat(100_000);
        for (bytes, reason) in [
            (&b""[..], BadKey::Scheme),
            (b"hello\n", BadKey::Scheme),
            (&text.as_bytes()[..40], BadKey::Length),
            (long.as_bytes(), BadKey::Length),
            (b"netvm-key-1:\xFF\xFE", BadKey::Text),
        ] {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(MODE)).unwrap();
            match ClusterKey::read_file(&path) {
                Err(KeyFileError::NoKey { reason: found, .. }) => assert_eq!(found, reason),
                other => panic!("{other:?}"),
            }
        }
        let absent = ClusterKey::read_file(folder.0.join("absent"));
        assert!(matches!(absent, Err(KeyFileError::Read { .. })));
        assert!(matches!(
            ClusterKey::read_file(&folder.0),
            Err(KeyFileError::NotAFile(_))
        ));
        let pipe = folder.0.join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(MODE);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        assert!(matches!(
            ClusterKey::read_file(&pipe),
            Err(KeyFileError::NotAFile(_))
        ));
    }
}
