//! Whose turn it is to run a machine.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tests take turns: some at a time, or one alone. Those whose machines stand still need none.
pub struct Turns {
    state: Mutex<State>,
    /// Told when one of them is done.
    done: Condvar,
}

struct State {
    /// Tests that have a machine.
    running: usize,
    /// Tests that have one which stands still, besides.
    idle: usize,
    /// Tests that wait until none has.
    waiting: usize,
    /// The one that runs has waited for that.
    alone: bool,
}

/// A test's leave to run a machine, or one after the other.
pub struct Turn<'a> {
    turns: &'a Turns,
    is_idle: bool,
}

impl Turns {
    pub const fn new() -> Self {
        let state = Mutex::new(State { running: 0, idle: 0, waiting: 0, alone: false });
        Self { state, done: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> Turn<'_> {
        Turn { turns: self, is_idle: false }
    }

    /// Tests that have a machine now.
    pub fn all(&self) -> usize {
        let state = self.state();
        state.running + state.idle
    }

    /// Waits for nobody, and nobody waits for it.
    pub fn idle(&self) -> Turn<'_> {
        self.state().idle += 1;
        Turn { turns: self, is_idle: true }
    }

    /// Waits until fewer than so many run, and nobody waits to run alone.
    pub fn beside(&self, most: usize) -> Turn<'_> {
        let full = |state: &mut State| state.running >= most || state.alone || state.waiting > 0;
        let state = self.done.wait_while(self.state(), full);
        state.unwrap_or_else(PoisonError::into_inner).running += 1;
        self.turn()
    }

    /// Waits until no other runs, and has others wait in turn.
    pub fn alone(&self) -> Turn<'_> {
        let mut state = self.state();
        state.waiting += 1;
        let others = |state: &mut State| state.running > 0;
        let state = self.done.wait_while(state, others);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        (state.running, state.waiting, state.alone) = (1, state.waiting - 1, true);
        self.turn()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        if self.is_idle {
            state.idle -= 1;
        } else {
            (state.running, state.alone) = (state.running - 1, false);
            self.turns.done.notify_all();
        }
    }
}

mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    fn nothing_comes(told: &Receiver<&str>) {
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
    }

    fn comes(told: &Receiver<&str>, what: &str) {
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(what));
    }

    #[test]
    fn a_turn_comes_when_another_is_done() {
        let turns = Turns::new();
        let [first, _second] = [turns.beside(2), turns.beside(2)];
        let (tell, told) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = turns.beside(2);
                tell.send("third").unwrap();
            });
            nothing_comes(&told);
            drop(first);
            comes(&told, "third");
        });
        assert_eq!(turns.all(), 1);
    }

    #[test]
    fn machines_that_stand_still_keep_nobody_from_running() {
        let turns = Turns::new();
        let idle = turns.idle();
        let alone = turns.alone();
        let second = turns.idle();
        assert_eq!(turns.all(), 3);
        drop(idle);
        drop(alone);
        assert_eq!(turns.all(), 1);
        drop(second);
        let _both = [turns.beside(2), turns.beside(2)];
    }

    #[test]
    fn who_runs_alone_waits_for_others_and_they_wait_for_it() {
        let turns = &Turns::new();
        let other = turns.beside(2);
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        thread::scope(|scope| {
            let alone = tell.clone();
            scope.spawn(move || {
                let _turn = turns.alone();
                alone.send("alone").unwrap();
                // Until the other end is gone.
                let _ = ended.into_iter().next();
            });
            while turns.state().waiting == 0 {
                thread::yield_now();
            }
            scope.spawn(|| {
                let _turn = turns.beside(2);
                tell.send("beside").unwrap();
            });
            // There is room for one more, but somebody waits to have it all.
            nothing_comes(&told);
            drop(other);
            comes(&told, "alone");
            nothing_comes(&told);
            drop(end);
            comes(&told, "beside");
        });
    }
}
