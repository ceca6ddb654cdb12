use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::StartCall::{Create, Sandbox, Start};
use super::{SLOW, StartCall, StartPermits, WITH_SLOW};
use crate::runtime::RuntimeError;
use crate::settings::StartLimits;

fn limits(first: usize, least: usize, most: usize) -> StartLimits {
    let number = |number| NonZeroUsize::new(number).unwrap();
    let mut limits = StartLimits::default();
    (limits.first, limits.least, limits.most) = (number(first), number(least), number(most));
    limits
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn call(permits: &StartPermits, of: StartCall, takes: Duration, answered: bool) {
    let permit = permits.acquire(of, &CancellationToken::new()).await.unwrap();
    let work = async {
        sleep(takes).await;
        if answered {
            Ok(())
        } else {
            Err(RuntimeError::uncertain("call", "no answer"))
        }
    };
    let _ = permit.cover(work).await;
}

/// A runtime with so many processors: calls share them.
#[derive(Debug, Default)]
struct Busy(Mutex<usize>);

impl Busy {
    async fn work(&self, alone: Duration, processors: usize) {
        *self.0.lock().unwrap() += 1;
        let mut left = alone.as_secs_f64();
        while left > 0.0 {
            let now = *self.0.lock().unwrap();
            let share = (processors as f64 / now as f64).min(1.0);
            sleep(ms(5)).await;
            left -= 0.005 * share;
        }
        *self.0.lock().unwrap() -= 1;
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_nearest_to_running_comes_first_and_then_whoever_waits_longest() {
    let permits = StartPermits::new(limits(1, 1, 1));
    let done = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for (name, of) in [
        ("first", Sandbox),
        ("sandbox 1", Sandbox),
        ("sandbox 2", Sandbox),
        ("create 1", Create),
        ("start", Start),
        ("create 2", Create),
    ] {
        let (permits, done) = (permits.clone(), done.clone());
        tasks.spawn(async move {
            call(&permits, of, ms(10), true).await;
            done.lock().unwrap().push(name);
        });
        tokio::task::yield_now().await;
    }
    while tasks.join_next().await.is_some() {}
    let done = done.lock().unwrap();
    assert_eq!(
        *done,
        ["first", "start", "create 1", "create 2", "sandbox 1", "sandbox 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_stops_waiting_takes_no_permit_along() {
    let permits = StartPermits::new(limits(1, 1, 1));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let permits = permits.clone();
        tasks.spawn(async move { call(&permits, Start, ms(100), true).await });
        tokio::task::yield_now().await;
    }
    for after in [50, 100, 150] {
        let waits = tokio::time::timeout(ms(after), call(&permits, Start, ms(1000), true));
        assert!(waits.await.is_err());
    }
    let stop = CancellationToken::new();
    stop.cancel();
    assert!(permits.acquire(Start, &stop).await.is_none());
    while tasks.join_next().await.is_some() {}
    let begun = Instant::now();
    call(&permits, Start, ms(10), true).await;
    assert_eq!(begun.elapsed(), ms(10));
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_hold_up_nobody_for_long() {
    let permits = StartPermits::new(limits(2, 2, 2));
    let mut tasks = JoinSet::new();
    for _ in 0..WITH_SLOW - 2 {
        let permits = permits.clone();
        tasks.spawn(async move { call(&permits, Sandbox, Duration::from_secs(100_000), true).await });
    }
    // Two stop counting each ten seconds.
    sleep(SLOW * (WITH_SLOW as u32 / 2)).await;
    let begun = Instant::now();
    call(&permits, Sandbox, ms(10), true).await;
    assert_eq!(begun.elapsed(), ms(10));
    tasks.shutdown().await;
    call(&permits, Sandbox, ms(10), true).await;
}

/// When half of 60 pods were up, when all were, and the limit that comes of it.
async fn burst(permits: &StartPermits, processors: usize) -> (Duration, Duration, usize) {
    let busy = Arc::new(Busy::default());
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..60 {
        let (permits, busy) = (permits.clone(), busy.clone());
        tasks.spawn(async move {
            for of in [Sandbox, Create, Start] {
                let permit = permits.acquire(of, &CancellationToken::new()).await.unwrap();
                let work = async {
                    busy.work(ms(50), processors).await;
                    Ok(())
                };
                permit.cover(work).await.unwrap();
            }
        });
    }
    let mut up_at = Vec::new();
    while tasks.join_next().await.is_some() {
        up_at.push(begun.elapsed());
    }
    (up_at[29], up_at[59], permits.limit())
}

#[tokio::test(start_paused = true)]
async fn pods_come_up_one_after_the_other_and_the_last_no_later() {
    for (processors, first) in [(2, 8), (16, 64)] {
        let (_, unlimited, _) = burst(&StartPermits::new(limits(1000, 1000, 1000)), processors).await;
        let (half, all, limit) = burst(&StartPermits::new(limits(first, 4, 256)), processors).await;
        assert!(
            all < unlimited.mul_f64(1.05),
            "{processors}: {all:?} instead of {unlimited:?}"
        );
        if processors == 2 {
            assert!(
                half < all.mul_f64(0.6),
                "{processors}: half after {half:?}, all after {all:?}"
            );
            assert!(limit <= 12, "{limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn more_are_made_at_a_time_where_that_is_of_use_and_fewer_where_it_is_of_none() {
    let permits = StartPermits::new(limits(8, 4, 256));
    for _ in 0..3 {
        burst(&permits, 64).await;
    }
    let many = permits.limit();
    assert!(many >= 20, "{many}");
    for _ in 0..10 {
        burst(&permits, 2).await;
    }
    assert!(permits.limit() < many, "{} after {many}", permits.limit());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_answer_is_asked_less() {
    let permits = StartPermits::new(limits(32, 2, 64));
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let permits = permits.clone();
        tasks.spawn(async move { call(&permits, Create, Duration::from_secs(5), false).await });
    }
    while tasks.join_next().await.is_some() {}
    assert!(permits.limit() <= 4, "{}", permits.limit());
    // It answers again.
    for _ in 0..200 {
        let permits = permits.clone();
        tasks.spawn(async move { call(&permits, Create, ms(50), true).await });
    }
    while tasks.join_next().await.is_some() {}
    assert!(permits.limit() >= 4, "{}", permits.limit());
}
