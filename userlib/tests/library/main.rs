//! The library against a card made of words: what it posts, and what it makes of the answers.

mod appends;
mod channels;
mod collected;
mod events;
mod failures;
mod handlers;
mod handles;
mod locks;
mod pending;
mod posting;
mod receiving;
mod seats;
mod threads;
mod typed;
