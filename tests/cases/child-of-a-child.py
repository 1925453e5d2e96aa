# SPDX-License-Identifier: MIT
"""ray#31263: a worker starts a process of multiprocessing's, and that one another; both give answers by queues with threads."""
import multiprocessing
from report import same, steps

context = multiprocessing.get_context("fork")
questions, answers = context.Queue(), context.Queue()


def grandchild(inner_questions, inner_answers):
    while True:
        inner_answers.put(inner_questions.get() * 2)


def child():
    inner_questions, inner_answers = context.Queue(), context.Queue()
    context.Process(target=grandchild, args=(inner_questions, inner_answers)).start()
    while True:
        inner_questions.put(questions.get())
        answers.put(inner_answers.get() + 1)


context.Process(target=child).start()


def look(step):
    questions.put(step)
    same("the answer", answers.get(timeout=60), step * 2 + 1)


steps(look)
