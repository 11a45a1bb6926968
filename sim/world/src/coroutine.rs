//! Apps as stackful coroutines: the library's code runs unchanged and parks where it would spin,
//! block or fault.
//!
//! A process that is killed stops where it stands. No destructor of the library runs while the world lasts, as none runs
//! in a process that is killed: its stack is kept as it is. [`App::unwind`] gives back what the stack owns once the world
//! is over, when nothing that a destructor does can reach the world any more. Until then a killed app holds its stack (some
//! tens of KiB are touched) and leaves reference counts too high. Without it each death would leak what its stack refers
//! to, which may be the whole world.

use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use netvm_abi::Nanos;
use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Bytes of an app's stack. Untouched pages of it cost nothing.
const STACK_BYTES: usize = 256 << 10;

/// Why an app gave up the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Park {
    /// It goes on at this time, or earlier when woken.
    Until(Nanos),
    /// It was interrupted between two memory accesses; no other app of its process may run before it, because the
    /// library may be inside of a critical section.
    Access(Nanos),
}

/// What a turn of an app came to.
pub(crate) enum Turn {
    /// It parked.
    Parked(Park),
    /// Its body returned.
    Finished,
    /// Its body panicked, with this message.
    Panicked(String),
}

/// Stacks to use again. Mapping one costs more than a short app.
#[derive(Clone, Default)]
pub(crate) struct StackPool(Rc<RefCell<Vec<DefaultStack>>>);

/// From the lowest address of a stack to its end.
fn place_of(stack: &DefaultStack) -> Range<usize> {
    stack.limit().get()..stack.base().get()
}

impl StackPool {
    /// Where the stacks lie that are not in use.
    pub(crate) fn places(&self) -> Vec<Range<usize>> {
        self.0.borrow().iter().map(place_of).collect()
    }

    fn take(&self) -> std::io::Result<DefaultStack> {
        let pooled = self.0.borrow_mut().pop();
        pooled.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)
    }
}

/// The handle by which code inside of an app parks it. It is valid only while the app runs.
#[derive(Clone, Default)]
pub(crate) struct Parker(Rc<Cell<Option<*const Yielder<(), Park>>>>, Rc<Question>);

/// Where an app stands, asked of the app itself: only from its own stack can that be told.
#[derive(Default)]
struct Question {
    asked: Cell<bool>,
    answer: RefCell<String>,
}

/// Most calls that an answer names, the innermost ones.
const CALLS: usize = 10;

impl Question {
    /// The asking app's chain of calls, innermost first, as far as names are known and ours.
    fn whereabouts() -> String {
        let trace = Backtrace::force_capture().to_string();
        let mut calls: Vec<String> = Vec::new();
        for line in trace.lines().map(str::trim) {
            if let Some(place) = line.strip_prefix("at ") {
                let place = place.rsplit('/').next().unwrap_or(place);
                // Without the column.
                let place = place.rsplit_once(':').map_or(place, |(line, _)| line);
                if let Some(call) = calls.last_mut().filter(|call| !call.ends_with(')')) {
                    call.push_str(&format!(" ({place})"));
                }
            } else if let Some((_, name)) = line.split_once(": ") {
                calls.push(name.to_owned());
            }
        }
        // Below the app's own calls stand those of the code that asked.
        let bottom = calls
            .iter()
            .rposition(|call| call.contains("::coroutine::App::run"));
        calls.truncate(bottom.unwrap_or(calls.len()));
        let own = |call: &String| call.starts_with("netvm") || call.starts_with("<netvm");
        let plumbing = |call: &String| call.contains("::coroutine::") || call.contains("::backend::");
        calls.retain(|call| own(call) && !plumbing(call));
        calls.truncate(CALLS);
        calls.join(" < ")
    }
}

impl Parker {
    /// Parks the running app. Returns at once when no app runs.
    pub(crate) fn park(&self, why: Park) {
        let Some(yielder) = self.0.take() else { return };
        // SAFETY: the pointer is set on entry to the coroutine and after each return from `suspend`,
        // and taken out whenever control leaves it; so it is only found here by code that runs on
        // that coroutine's stack, below the frame that owns the yielder.
        unsafe { (*yielder).suspend(why) };
        while self.1.asked.take() {
            *self.1.answer.borrow_mut() = Question::whereabouts();
            // SAFETY: as above; nothing has left this frame since.
            unsafe { (*yielder).suspend(why) };
        }
        self.0.set(Some(yielder));
    }

    /// Runs `act`, which parks no app: it is not the app that wants it, though it runs on its stack.
    pub(crate) fn masked<T>(&self, act: impl FnOnce() -> T) -> T {
        let yielder = self.0.take();
        let result = act();
        self.0.set(yielder);
        result
    }

    /// Whether an app runs right now.
    pub(crate) fn inside(&self) -> bool {
        // A pointer is copied, not followed.
        let yielder = self.0.take();
        let inside = yielder.is_some();
        self.0.set(yielder);
        inside
    }
}

/// An app.
pub(crate) struct App {
    coroutine: Option<Coroutine<(), Park, (), DefaultStack>>,
    pool: StackPool,
    /// Addresses of its stack.
    stack: Range<usize>,
}

impl App {
    /// An app that will run `body` on a stack from `pool`. `parker` is shared by all apps of a world:
    /// only one runs at a time.
    pub(crate) fn new(pool: &StackPool, parker: &Parker, body: Box<dyn FnOnce()>) -> std::io::Result<Self> {
        let stack = pool.take()?;
        let place = place_of(&stack);
        let parker = parker.clone();
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Park>, ()| {
            parker.0.set(Some(std::ptr::from_ref(yielder)));
            body();
            parker.0.set(None);
        });
        Ok(Self {
            coroutine: Some(coroutine),
            pool: pool.clone(),
            stack: place,
        })
    }

    /// Where its stack lies.
    pub(crate) fn stack(&self) -> Range<usize> {
        self.stack.clone()
    }

    /// Lets the app run until it parks or ends.
    pub(crate) fn run(&mut self, parker: &Parker) -> Turn {
        let Some(coroutine) = self.coroutine.as_mut() else {
            return Turn::Finished;
        };
        let outer = parker.0.take();
        let result = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
        parker.0.set(outer);
        match result {
            Ok(CoroutineResult::Yield(why)) => Turn::Parked(why),
            Ok(CoroutineResult::Return(())) => {
                self.reclaim();
                Turn::Finished
            }
            Err(panic) => {
                self.reclaim();
                Turn::Panicked(message(&*panic))
            }
        }
    }

    /// In which call an app stands that has parked; it does not go on. For a report.
    pub(crate) fn whereabouts(&mut self, parker: &Parker) -> String {
        parker.1.asked.set(true);
        parker.1.answer.borrow_mut().clear();
        // An app that has not run yet answers nothing, and its first turn is lost with the run.
        let _ = self.run(parker);
        parker.1.asked.set(false);
        parker.1.answer.take()
    }

    /// Runs the destructors of all that the app's stack owns, and ends the app. Only for a world that is over: they must
    /// find a back end that refuses everything.
    pub(crate) fn unwind(&mut self) {
        let Some(coroutine) = self.coroutine.as_mut() else {
            return;
        };
        // The unwinding begins inside of `Parker::park`, which has taken the parker's pointer: destructors do not park.
        // A panic of a destructor ends this app all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| coroutine.force_unwind()));
        self.reclaim();
    }

    fn reclaim(&mut self) {
        if let Some(coroutine) = self.coroutine.take() {
            self.pool.0.borrow_mut().push(coroutine.into_stack());
        }
    }
}

impl Drop for App {
    /// An app that has not run yet owns no more than its body, which is dropped. Any other app of a world that is not over,
    /// because the world itself has panicked, is forgotten.
    fn drop(&mut self) {
        if let Some(coroutine) = self.coroutine.as_mut().filter(|coroutine| coroutine.started()) {
            // SAFETY: this is a longjmp over whatever the app has on its stack, which is sound as
            // long as nothing relies on a destructor there for memory safety: the library keeps no
            // reference to its stack outside of it, scoped borrows of the world's cells are never
            // held across a park (`Parker::park` is called with none), and leaking is safe.
            unsafe { coroutine.force_reset() };
        } else if let Some(coroutine) = self.coroutine.as_mut() {
            coroutine.force_unwind();
        }
        self.reclaim();
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SetOnDrop(Rc<Cell<bool>>);

    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    #[test]
    fn parks_and_goes_on() {
        let (pool, parker) = (StackPool::default(), Parker::default());
        let count = Rc::new(Cell::new(0));
        let (inner, counter) = (parker.clone(), count.clone());
        let body = Box::new(move || {
            for n in 0..3 {
                counter.set(n);
                inner.park(Park::Until(Nanos(n)));
            }
        });
        let mut app = App::new(&pool, &parker, body).unwrap();
        for n in 0..3 {
            assert!(matches!(app.run(&parker), Turn::Parked(Park::Until(Nanos(at))) if at == n));
            assert_eq!(count.get(), n);
            assert!(!parker.inside());
        }
        assert!(matches!(app.run(&parker), Turn::Finished));
        assert_eq!(pool.0.borrow().len(), 1, "the stack is used again");
    }

    #[test]
    fn an_app_that_is_forgotten_runs_no_destructor_and_gives_the_stack_back() {
        let (pool, parker) = (StackPool::default(), Parker::default());
        let dropped = Rc::new(Cell::new(false));
        let guard = SetOnDrop(dropped.clone());
        let inner = parker.clone();
        let body = Box::new(move || {
            let _guard = guard;
            inner.park(Park::Until(Nanos(0)));
        });
        let mut app = App::new(&pool, &parker, body).unwrap();
        assert!(matches!(app.run(&parker), Turn::Parked(_)));
        drop(app);
        assert!(!dropped.get());
        assert_eq!(pool.0.borrow().len(), 1);
    }

    #[test]
    fn an_app_that_is_unwound_leaves_nothing_wherever_it_stands() {
        for turns in 0..3 {
            let (pool, parker) = (StackPool::default(), Parker::default());
            let dropped = Rc::new(Cell::new(false));
            let guard = SetOnDrop(dropped.clone());
            let inner = parker.clone();
            let body = Box::new(move || {
                let _guard = guard;
                inner.park(Park::Until(Nanos(0)));
                // What catches panics does not keep it alive.
                let _ = catch_unwind(AssertUnwindSafe(|| inner.park(Park::Until(Nanos(1)))));
                inner.park(Park::Until(Nanos(2)));
            });
            let mut app = App::new(&pool, &parker, body).unwrap();
            for _ in 0..turns {
                assert!(matches!(app.run(&parker), Turn::Parked(_)));
            }
            app.unwind();
            assert!(dropped.get() && !parker.inside(), "after {turns} turns");
            assert_eq!(pool.0.borrow().len(), 1);
            assert!(
                matches!(app.run(&parker), Turn::Finished),
                "a dead app does not run"
            );
        }
    }

    #[inline(never)]
    fn waits_for_something(parker: &Parker) {
        parker.park(Park::Until(Nanos(7)));
        std::hint::black_box(parker);
    }

    #[test]
    fn tells_where_it_stands_without_going_on() {
        let (pool, parker) = (StackPool::default(), Parker::default());
        let (inner, went_on) = (parker.clone(), Rc::new(Cell::new(false)));
        let flag = went_on.clone();
        let body = Box::new(move || {
            waits_for_something(&inner);
            flag.set(true);
        });
        let mut app = App::new(&pool, &parker, body).unwrap();
        assert!(matches!(app.run(&parker), Turn::Parked(_)));
        for _ in 0..2 {
            // The names of this module are plumbing, so only that it answers can be seen here.
            let _ = app.whereabouts(&parker);
            assert!(!went_on.get() && !parker.inside());
        }
        assert!(matches!(app.run(&parker), Turn::Finished));
        assert!(went_on.get());
    }

    #[test]
    fn a_panic_is_reported_not_passed_on() {
        let (pool, parker) = (StackPool::default(), Parker::default());
        let mut app = App::new(&pool, &parker, Box::new(|| panic!("body failed"))).unwrap();
        assert!(matches!(app.run(&parker), Turn::Panicked(text) if text == "body failed"));
        assert!(!parker.inside());
    }
}
